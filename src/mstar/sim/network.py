"""Simulated network: delays, duplicates, reorders and drops frames, with partitions."""

from __future__ import annotations

from mstar.sim.environment import Environment
from mstar.sim.process import SimProcess
from mstar.sim.processes import LAUNCHER
from mstar.wire.link import OutgoingFrame
from mstar.wire.messages import Peer

LATENCY_S = 0.0002
"""Minimum seconds of a frame in transit."""


class Network:
    """The network of one simulation."""

    def __init__(self, simulation: Environment) -> None:
        self._simulation = simulation
        self._partitions: dict[tuple[str, str], float] = {}

    def partition(self, sender: str, receiver: str, until: float) -> None:
        """Drop frames from one process to another until a time."""
        self._partitions[sender, receiver] = until

    def transmit(self, process: SimProcess, to: Peer, frame: OutgoingFrame) -> None:
        """Send a frame; it arrives late, twice, or not at all. After the last fault it arrives once and soon."""
        simulation = self._simulation
        now, draw, scenario = simulation.now, simulation.rng.random, simulation.scenario
        if now >= scenario.end:
            simulation.schedule_at(now + LATENCY_S * (1 + draw()), self._deliver, process.peer, to, frame)
            return
        delay = LATENCY_S + scenario.max_delay_s * draw()
        if scenario.repeat_probability and draw() < scenario.repeat_probability:
            simulation.schedule_at(
                now + delay + 3 * scenario.max_delay_s * draw(), self._deliver, process.peer, to, frame
            )
        if not scenario.drop_probability or draw() >= scenario.drop_probability:
            simulation.schedule_at(now + delay, self._deliver, process.peer, to, frame)

    def _deliver(self, sender: Peer, to: Peer, frame: OutgoingFrame) -> None:
        simulation = self._simulation
        process = simulation.launcher if to is LAUNCHER else simulation.processes.get(to.name)
        if process is None or process.peer != to:
            return
        if not process.is_up:
            return
        if self._partitions and self._partitions.get((sender.name, to.name), 0.0) > simulation.now:
            return
        if process.inbox is None:
            process.on_frame(sender, *frame)
        else:
            process.inbox.append((process.on_frame, (sender, *frame)))
