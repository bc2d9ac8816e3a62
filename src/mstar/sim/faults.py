"""What goes wrong at a moment: processes are killed, stand still, get slow, or cannot reach each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar.sim.processes import LAUNCHER, AnyProcess
from mstar.sim.scenario import Fault
from mstar.wire.messages import Drain, LoadModel, RollWeights, UnloadModel

if TYPE_CHECKING:
    from mstar.sim.simulation import Simulation

SLOW_FACTOR = 10.0
ROLL_RETRY_S = 0.05
"""After so many seconds it is looked again whether the last renewal is over."""


class FaultInjector:
    """Strikes one world."""

    def __init__(self, simulation: Simulation) -> None:
        self.is_draining = False
        self._simulation = simulation
        self._slow_until: dict[str, float] = {}

    def inject(self, fault: Fault) -> None:
        """Something goes wrong."""
        world = self._simulation
        names = list(world.processes)
        if fault.kind in ("kill", "slow"):
            names = [name for name in names if name in world.workers]
        if fault.kind == "conductor":
            names = [name for name in world.shards.models if name in world.processes]
        if not names:
            return
        who = names[int(fault.target * len(names))]
        world.log(fault.kind, who, f"{fault.duration_s:.3f} s")
        match fault.kind:
            case "slow":
                self._slow_until[who] = world.now + fault.duration_s
            case "pause":
                self._pause(world.processes[who], fault.duration_s)
            case "cut":
                self._partition(who, fault)
            case _:
                world.kill(world.peers[who], "it was struck")

    def slow_factor(self, name: str) -> float:
        """How many times longer a worker's batches take now."""
        return SLOW_FACTOR if self._slow_until.get(name, 0.0) > self._simulation.now else 1.0

    def _partition(self, target: str, fault: Fault) -> None:
        """Cut a process off from another: in one direction or in both."""
        world = self._simulation
        every = [LAUNCHER.name, *world.peers]
        place = fault.other_target * len(every)
        other = every[int(place)]
        until = world.now + fault.duration_s
        world.network.partition(target, other, until)
        if place % 1 < 0.5:
            world.network.partition(other, target, until)
        world.log("cut off from", other, "both ways" if place % 1 < 0.5 else "one way")

    def _pause(self, process: AnyProcess, seconds: float) -> None:
        if process.inbox is None and process.is_up:
            process.inbox = []
            self._simulation.checker.on_pause(process, seconds)
            self._simulation.schedule_at(self._simulation.now + seconds, self._resume, process)

    def _resume(self, process: AnyProcess) -> None:
        if process.is_dead:
            return
        self._simulation.log(process.peer, "goes on")
        process.resumed_at = self._simulation.now
        waiting, process.inbox = process.inbox or [], None
        for do, given in waiting:
            if not process.is_dead:
                do(*given)
        if not process.is_dead:
            process.flush()

    def drain(self) -> None:
        """The operator wants it to end."""
        world = self._simulation
        world.log("drain")
        self.is_draining = True
        world.launcher.broadcast(Drain(), *world.shards.models)

    def load_or_unload(self, model: str, is_unload: bool) -> None:
        """The operator wants a model to rest, or to be there again."""
        world = self._simulation
        world.log(model, "is to rest" if is_unload else "is to be there")
        front = world.processes[world.scenario.frontends[0]]
        conductor = world.peers[world.shards.conductor(model)]
        world.schedule_for(
            0.0, front, front.send, conductor, UnloadModel(0, model) if is_unload else LoadModel(0, model)
        )

    def roll_weights(self) -> None:
        """There are new weights."""
        world = self._simulation
        if world.launcher.rolled_version < world.weights_version:  # one after the other
            world.schedule_at(world.now + ROLL_RETRY_S, self.roll_weights)
            return
        world.weights_version += 1
        world.log("edition", world.weights_version)
        world.launcher.broadcast(RollWeights(world.weights_version), *world.shards.models)
