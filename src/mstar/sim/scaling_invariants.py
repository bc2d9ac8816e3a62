"""Whether workers of a simulated world come and go as they may: I14, beside what `judge` looks at.

A worker leaves when nobody needs it, its crew keeps as many as it must have, and no request mixes weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar.sim.history import Violation
from mstar.sim.processes import SimConductor
from mstar.wire import messages as m

if TYPE_CHECKING:
    from mstar.sim.simulation import Simulation


class ScalingInvariants:
    """Watches who comes and goes in one world."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._weights_versions: dict[tuple[m.Peer, str], set[int]] = {}
        """With which edition each request runs, under each conductor."""

    def on_start_walk(self, life: SimConductor, start: m.StartWalk) -> None:
        """A conductor has a walk begun: with one edition, and with that of what its client has."""
        world, key = self._simulation, (life.peer, start.rid)
        editions = {world.weights_versions[peer] for peer in start.seats}
        before = self._weights_versions.setdefault(key, editions)
        has_something = world.history.requests[start.rid].delivered or start.emitted_counts
        if len(editions) > 1 or (editions != before and has_something):
            raise Violation(f"I14 {start.rid} is to go on with editions {editions}, not {before}")
        self._weights_versions[key] = editions

    def on_stop_worker(self, life: SimConductor, peer: m.Peer) -> None:
        """A conductor has a worker ended."""
        for request in life.core.lifecycle.requests.values():
            if request.needs(peer):
                raise Violation(f"I14 {request.rid} goes on with {peer}, which is to end")
        is_new = self._simulation.weights_versions[peer] == self._simulation.weights_version
        for crew in life.core.autoscaler.groups:
            count = len(life.core.membership.serving(crew.workers))
            if is_new and peer.name in crew.workers and count < crew.min_replicas:
                raise Violation(f"I14 {peer} is to end, with {count} of {crew.workers}, not {crew.min_replicas}")

    def scaling_problems(self, life: SimConductor) -> list[str]:
        """Crews that are too small, or larger than they need be with nothing to do; weights that are old."""
        if not self._simulation.scenario.is_elastic:
            return []
        crews = [(crew, len(life.core.membership.serving(crew.workers))) for crew in life.core.autoscaler.groups]
        left = [f"{crew.workers} has {crew.target}" for crew, _ in crews if crew.target > crew.min_replicas]
        left += [f"{crew.workers} has only {count}" for crew, count in crews if count < crew.min_replicas]
        is_behind = self._simulation.launcher.rolled_version < self._simulation.weights_version
        return left + (["the launcher waits for Renewed"] if is_behind else [])
