"""Requests that wait to be taken on: each key in its own order, and between keys by weight.

What is promised nothing waits apart, so that a stream for which there is no room holds up no job of the same key.
"""

from __future__ import annotations

from collections import deque

from mstar.wire.messages import Submit

FlowKey = tuple[str, bool]


class FairQueue:
    """Names of requests by lane. A lane that was empty begins where the others are."""

    def __init__(self) -> None:
        self._flows: dict[FlowKey, deque[str]] = {}
        self._virtual_times: dict[FlowKey, float] = {}
        self._weights: dict[FlowKey, float] = {}
        self._virtual_now = 0.0
        self._flow_by_request: dict[str, FlowKey] = {}

    def __len__(self) -> int:
        return len(self._flow_by_request)

    def __contains__(self, rid: str) -> bool:
        return rid in self._flow_by_request

    def add(self, submit: Submit) -> None:
        """One more waits."""
        lane = _flow_key(submit)
        if lane not in self._flows:
            self._flows[lane] = deque()
            self._virtual_times[lane] = self._virtual_now
        self._weights[lane] = submit.slo.weight
        self._flows[lane].append(submit.rid)
        self._flow_by_request[submit.rid] = lane

    def is_flow_waiting(self, submit: Submit) -> bool:
        """Whether others of its lane wait already."""
        return _flow_key(submit) in self._flows

    def heads(self) -> list[str]:
        """The first of each lane; the one whose lane had least comes first."""
        return [
            self._flows[lane][0] for lane in sorted(self._flows, key=lambda lane: (self._virtual_times[lane], lane))
        ]

    def take(self, rid: str) -> None:
        """The first of its lane is taken on."""
        lane = self._flow_by_request[rid]
        self._virtual_now = max(self._virtual_now, self._virtual_times[lane])
        self._virtual_times[lane] += 1 / self._weights[lane]
        self.remove(rid)

    def remove(self, rid: str) -> None:
        """One waits no more."""
        lane = self._flow_by_request.pop(rid)
        self._flows[lane].remove(rid)
        if not self._flows[lane]:
            del self._flows[lane], self._virtual_times[lane], self._weights[lane]


def _flow_key(submit: Submit) -> FlowKey:
    return submit.tenant, submit.slo.best_effort
