"""Rules for the next batch that others use, on our runtime: first come first served, and VoxServe's.

Ours is `mstar.worker.scheduling.policy.BySlack`. Which calls may run at all is the same for all of them.
"""

from __future__ import annotations

from mstar.worker.scheduling.cost_model import CostModel
from mstar.worker.scheduling.policy import ChosenBatch, MaxBatchSize, ReadyCall, RunnableCalls

URGENT_S = 1.0
"""VoxServe's margin: who has less than this left to play is pressing."""


class FirstComeFirstServed:
    """First come, first served: the oldest request runs, batched with others of the same op in arrival order."""

    def choose(self, now: float, able: RunnableCalls, costs: CostModel, most: MaxBatchSize) -> ChosenBatch:  # noqa: ARG002 - as every order
        """The calls that run next."""
        key = min(able, key=lambda key: min(waiter.walk_run.number for waiter in able[key]))
        return key, sorted(able[key], key=lambda waiter: waiter.walk_run.number)[: most(key)]


class VoxServePolicy:
    """Two classes: who has nothing yet, or less than a second left to play, and the others. Within one, by coming.

    An op runs if an urgent request calls it; others join its batch, and run alone if none
    is pressing.
    """

    def choose(self, now: float, able: RunnableCalls, costs: CostModel, most: MaxBatchSize) -> ChosenBatch:  # noqa: ARG002 - as every order
        """The calls that run next."""

        def rank(waiter: ReadyCall) -> tuple[bool, int]:
            return not _is_urgent(now, waiter), waiter.walk_run.number

        key = min(able, key=lambda key: min(map(rank, able[key])))
        return key, sorted(able[key], key=rank)[: most(key)]


class ThroughputFirst:
    """Throughput only: large batches and cheap ops first, without deadlines."""

    def __init__(self) -> None:
        from mstar.worker.scheduling.fair_share import FairShare
        from mstar.worker.scheduling.policy import LeastSlackFirst

        self._policy = LeastSlackFirst(FairShare())

    def choose(self, now: float, able: RunnableCalls, costs: CostModel, most: MaxBatchSize) -> ChosenBatch:
        """The calls that run next."""
        return self._policy.choose_for_throughput(now, able, costs, most)


def _is_urgent(now: float, waiter: ReadyCall) -> bool:
    if waiter.walk_run.start.slo.best_effort:
        return False
    players = waiter.walk_run.playback_clocks.values()
    return not players or min(player.due for player in players) - now <= URGENT_S
