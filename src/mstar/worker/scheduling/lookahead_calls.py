"""Ready calls of lookaheads: a class below all others. One of them runs alone, and only if that makes nothing late.

1. No other call is ready, and the engine is idle.
2. The estimated cost of the call is less than the least slack of all streams of the worker. An op cannot be
   interrupted, so this is the longest time for which it can delay a stream.
3. A call without an estimate runs only if the worker has no stream at all.
4. The call that became ready first goes first. It shares its batch with no other call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from math import inf

from mstar.plan.tables import Emit, Opcode, Plan
from mstar.worker.requests import WalkRun
from mstar.worker.scheduling.cost_model import CostModel, ModelBatchKey
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.scheduling.tuning import DEFAULT_TUNING


class LookaheadCalls:
    """Ready calls of lookaheads, in order of arrival. `others` are the ordinary ready calls, by batch key."""

    def __init__(self, others: MutableMapping[ModelBatchKey, list[ReadyCall]], cost_model: CostModel) -> None:
        self.is_any = False
        """Whether a call is ready. Kept, because every event checks it."""
        self._others = others
        self._cost_model = cost_model
        self._calls: list[tuple[ModelBatchKey, ReadyCall]] = []
        self._emitted_kinds: dict[tuple[str, str], set[str]] = {}
        """Kinds of emissions, by model and walk."""

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[ReadyCall]:
        return (call for _, call in self._calls)

    def add(self, key: ModelBatchKey, call: ReadyCall) -> None:
        """Add a call that became ready."""
        self._calls.append((key, call))
        self.is_any = True

    def requeue(self, key: ModelBatchKey, call: ReadyCall) -> None:
        """Add a chunked call that has run in part, before all others."""
        self._calls.insert(0, (key, call))
        self.is_any = True

    def take(self, *walk_runs: WalkRun) -> list[tuple[ModelBatchKey, ReadyCall]]:
        """Remove and return the calls of walk runs."""
        taken = {*walk_runs}
        calls, self._calls = self._calls, [entry for entry in self._calls if entry[1].walk_run not in taken]
        self.is_any = bool(self._calls)
        return [entry for entry in calls if entry[1].walk_run in taken]

    def promote(self, now: float, walk_run: WalkRun) -> None:
        """Make the calls of a lookahead that was committed ordinary ones, as if they became ready now."""
        for key, call in self.take(walk_run):
            calls = self._others.setdefault(key, [])
            call.ready_since, call.number = now, calls[-1].number if calls else 0
            calls.append(call)

    def choose(self, now: float, walk_runs: Iterable[WalkRun]) -> tuple[ModelBatchKey, ReadyCall, float] | None:
        """Choose and remove the next call for an idle engine, with the seconds that it can take.

        `walk_runs` are those of the streams of the worker. None if it is better to wait.
        """
        if self._others:
            return None
        slack_s = self._stream_slack(now, walk_runs)
        for number, (key, call) in enumerate(self._calls):
            cost_s = self._cost_model.typical_s(key)
            if slack_s is None or (cost_s is not None and cost_s < slack_s):
                del self._calls[number]
                self.is_any = bool(self._calls)
                return key, call, inf if slack_s is None else slack_s
        return None

    def _stream_slack(self, now: float, walk_runs: Iterable[WalkRun]) -> float | None:
        """Least slack of the unfinished walk runs in seconds; None if there are none.

        Their next calls are not ready, so the work before the next output is not known and not subtracted.
        """
        slack_s: float | None = None
        for walk_run in walk_runs:
            if walk_run.is_over or (walk_run.is_started and not walk_run.runs):
                continue
            kinds = self._kinds(walk_run) if walk_run.has_deadlines else ()
            due = min((walk_run.next_due(kind)[0] for kind in kinds), default=inf)
            own_s = due - now - DEFAULT_TUNING.delivery_margin_s
            slack_s = own_s if slack_s is None else min(slack_s, own_s)
        return slack_s

    def _kinds(self, walk_run: WalkRun) -> set[str]:
        walk = walk_run.start.model, walk_run.start.walk_name
        if walk not in self._emitted_kinds:
            self._emitted_kinds[walk] = _find_emitted_kinds(walk_run.plan)
        return self._emitted_kinds[walk]


def _find_emitted_kinds(plan: Plan) -> set[str]:
    bodies = (body for program in plan.programs for body in program.bodies.values())
    details = (each.detail for body in bodies for each in body.instructions if each.opcode is Opcode.EMIT)
    return {detail.kind for detail in details if isinstance(detail, Emit)}
