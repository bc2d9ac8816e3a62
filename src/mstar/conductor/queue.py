"""Requests that wait to be taken on: each key in its own order, and between keys by weight.

What is promised nothing waits apart, so that a stream for which there is no room holds up no job of the same key.
"""

from __future__ import annotations

from collections import deque

from mstar.wire.messages import Submit

Lane = tuple[str, bool]


class Queue:
    """Names of requests by lane. A lane that was empty begins where the others are."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[str]] = {}
        self._had: dict[Lane, float] = {}
        self._weights: dict[Lane, float] = {}
        self._now = 0.0
        self._where: dict[str, Lane] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, rid: str) -> bool:
        return rid in self._where

    def add(self, submit: Submit) -> None:
        """One more waits."""
        lane = _lane(submit)
        if lane not in self._lanes:
            self._lanes[lane] = deque()
            self._had[lane] = self._now
        self._weights[lane] = submit.pace.weight
        self._lanes[lane].append(submit.rid)
        self._where[submit.rid] = lane

    def is_behind(self, submit: Submit) -> bool:
        """Whether others of its lane wait already."""
        return _lane(submit) in self._lanes

    def heads(self) -> list[str]:
        """The first of each lane; the one whose lane had least comes first."""
        return [self._lanes[lane][0] for lane in sorted(self._lanes, key=lambda lane: (self._had[lane], lane))]

    def take(self, rid: str) -> None:
        """The first of its lane is taken on."""
        lane = self._where[rid]
        self._now = max(self._now, self._had[lane])
        self._had[lane] += 1 / self._weights[lane]
        self.remove(rid)

    def remove(self, rid: str) -> None:
        """One waits no more."""
        lane = self._where.pop(rid)
        self._lanes[lane].remove(rid)
        if not self._lanes[lane]:
            del self._lanes[lane], self._had[lane], self._weights[lane]


def _lane(submit: Submit) -> Lane:
    return submit.tenant, submit.pace.is_batch
