"""Rules for the next batch that others use, on our runtime: first come first served, and VoxServe's.

Ours is `mstar.worker.order.BySlack`. Which calls may run at all is the same for all of them.
"""

from __future__ import annotations

from mstar.worker.costs import Costs
from mstar.worker.order import Able, Chosen, Most, Waiter

PRESSING_S = 1.0
"""VoxServe's margin: who has less than this left to play is pressing."""


class FirstCome:
    """The request that came first goes on; whoever calls the same op comes along, in the order of coming."""

    def choose(self, now: float, able: Able, costs: Costs, most: Most) -> Chosen:  # noqa: ARG002 - as every order
        """The calls that run next."""
        key = min(able, key=lambda key: min(waiter.tour.number for waiter in able[key]))
        return key, sorted(able[key], key=lambda waiter: waiter.tour.number)[: most(key)]


class Voxserve:
    """Two classes: who has nothing yet, or less than a second left to play, and the others. Within one, by coming.

    An op runs if a pressing request calls it; those that are not pressing come along, and run by themselves if nobody
    is pressing.
    """

    def choose(self, now: float, able: Able, costs: Costs, most: Most) -> Chosen:  # noqa: ARG002 - as every order
        """The calls that run next."""

        def rank(waiter: Waiter) -> tuple[bool, int]:
            return not _is_pressing(now, waiter), waiter.tour.number

        key = min(able, key=lambda key: min(map(rank, able[key])))
        return key, sorted(able[key], key=rank)[: most(key)]


class Throughput:
    """What serves most, whoever waits: large batches, cheap ops first, and nothing of clocks."""

    def __init__(self) -> None:
        from mstar.worker.order import BySlack
        from mstar.worker.shares import Shares

        self._order = BySlack(Shares())

    def choose(self, now: float, able: Able, costs: Costs, most: Most) -> Chosen:
        """The calls that run next."""
        return self._order.serve_most(now, able, costs, most)


def _is_pressing(now: float, waiter: Waiter) -> bool:
    if waiter.tour.start.pace.is_batch:
        return False
    players = waiter.tour.players.values()
    return not players or min(player.due for player in players) - now <= PRESSING_S
