"""The network of a simulated world: frames come late, twice, in another order, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar.sim.process import SimProcess
from mstar.sim.processes import LAUNCHER
from mstar.wire.link import OutgoingFrame
from mstar.wire.messages import Peer

if TYPE_CHECKING:
    from mstar.sim.simulation import Simulation

LATENCY_S = 0.0002


class Network:
    """All that is on its way."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._partitions: dict[tuple[str, str], float] = {}

    def partition(self, sender: str, receiver: str, until: float) -> None:
        """Let nothing through from one process to another for a while."""
        self._partitions[sender, receiver] = until

    def transmit(self, process: SimProcess, to: Peer, sent: OutgoingFrame) -> None:
        """A frame is on its way."""
        world = self._simulation
        now, draw, scenario = world.now, world.rng.random, world.scenario
        if now >= scenario.end:
            world.schedule_at(now + LATENCY_S * (1 + draw()), self._deliver, process.peer, to, sent)
            return
        delay = LATENCY_S + scenario.max_delay_s * draw()
        if scenario.repeat_probability and draw() < scenario.repeat_probability:
            world.schedule_at(now + delay + 3 * scenario.max_delay_s * draw(), self._deliver, process.peer, to, sent)
        if not scenario.drop_probability or draw() >= scenario.drop_probability:
            world.schedule_at(now + delay, self._deliver, process.peer, to, sent)

    def _deliver(self, sender: Peer, to: Peer, sent: OutgoingFrame) -> None:
        world = self._simulation
        life = world.launcher if to is LAUNCHER else world.processes.get(to.name)
        if life is None or life.peer != to or not life.is_up:
            return
        if self._partitions and self._partitions.get((sender.name, to.name), 0.0) > world.now:
            return
        if life.inbox is None:
            life.on_frame(sender, *sent)
        else:
            life.inbox.append((life.on_frame, (sender, *sent)))
