"""Whether workers of a simulated world come and go as they may: I14, beside what `judge` looks at.

A worker leaves when nobody needs it, its crew keeps as many as it must have, and no request mixes weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar.sim.history import Violation
from mstar.sim.processes import ConductorLife
from mstar.wire import messages as m

if TYPE_CHECKING:
    from mstar.sim.world import World


class Comings:
    """Watches who comes and goes in one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._editions: dict[tuple[m.Peer, str], set[int]] = {}
        """With which edition each request runs, under each conductor."""

    def starts(self, life: ConductorLife, start: m.Start) -> None:
        """A conductor has a walk begun: with one edition, and with that of what its client has."""
        world, key = self._world, (life.peer, start.rid)
        editions = {world.editions[peer] for peer in start.seats}
        before = self._editions.setdefault(key, editions)
        has_something = world.history.requests[start.rid].got or start.first
        if len(editions) > 1 or (editions != before and has_something):
            raise Violation(f"I14 {start.rid} is to go on with editions {editions}, not {before}")
        self._editions[key] = editions

    def retires(self, life: ConductorLife, peer: m.Peer) -> None:
        """A conductor has a worker ended."""
        for request in life.core.requests.values():
            if request.needs(peer):
                raise Violation(f"I14 {request.rid} goes on with {peer}, which is to end")
        is_new = self._world.editions[peer] == self._world.edition
        for crew in life.core.scaling.crews:
            count = len(crew.running(life.core))
            if is_new and peer.name in crew.workers and count < crew.least:
                raise Violation(f"I14 {peer} is to end, with {count} of {crew.workers}, not {crew.least}")

    def excess(self, life: ConductorLife) -> list[str]:
        """Crews that are too small, or larger than they need be with nothing to do; weights that are old."""
        if not self._world.scenario.is_elastic:
            return []
        crews = [(crew, len(crew.running(life.core))) for crew in life.core.scaling.crews]
        left = [f"{crew.workers} has {crew.target}" for crew, _ in crews if crew.target > crew.least]
        left += [f"{crew.workers} has only {count}" for crew, count in crews if count < crew.least]
        is_behind = self._world.launcher.renewed < self._world.edition
        return left + (["the launcher waits for Renewed"] if is_behind else [])
