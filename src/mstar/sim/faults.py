"""Fault injection at a point in time: kills, pauses, slow workers, network partitions, operator commands."""

from __future__ import annotations

from mstar.sim.environment import Environment
from mstar.sim.process import SimProcess
from mstar.sim.processes import LAUNCHER
from mstar.sim.scenario import Fault
from mstar.wire.messages import Drain, ExitCause, LoadModel, RollWeights, UnloadModel

SLOW_FACTOR = 10.0
"""Factor on batch latencies of a slow worker."""
ROLL_RETRY_S = 0.05
"""Seconds until a rolling update is tried again while the previous one runs."""


class FaultInjector:
    """Injects the faults of one simulation."""

    def __init__(self, simulation: Environment) -> None:
        self.is_draining = False
        self.broken_until = 0.0
        """Time until which no worker can load its weights."""
        self._simulation = simulation
        self._slow_until: dict[str, float] = {}

    def inject(self, fault: Fault) -> None:
        """Inject one fault."""
        simulation = self._simulation
        names = self._possible_targets(fault.kind)
        if not names:
            return
        name = names[int(fault.target * len(names))]
        simulation.log(fault.kind, name, f"{fault.duration_s:.3f} s")
        match fault.kind:
            case "broken":
                self.broken_until = simulation.now + fault.duration_s
            case "slow":
                self._slow_until[name] = simulation.now + fault.duration_s
            case "pause" | "hang":
                self._pause(simulation.processes[name], fault.duration_s)
            case "observer":
                self._pause(simulation.launcher, fault.duration_s)
            case "machine":
                for process in (*simulation.processes.values(), simulation.launcher):
                    self._pause(process, fault.duration_s, is_alone=False)
            case "cut":
                self._partition(name, fault)
            case _:
                cause = ExitCause.EXTERNAL if simulation.scenario.has_oom_counters else ExitCause.UNEXPLAINED
                simulation.kill(simulation.peers[name], "a fault was injected", cause)

    def _possible_targets(self, kind: str) -> list[str]:
        simulation = self._simulation
        names = list(simulation.processes)
        if kind in ("kill", "slow", "hang"):
            names = [worker for worker in names if worker in simulation.workers]
        if kind == "conductor":
            names = [conductor for conductor in simulation.shards.models if conductor in simulation.processes]
        return names

    def slow_factor(self, name: str) -> float:
        """Return the current factor on the batch latencies of a worker."""
        return SLOW_FACTOR if self._slow_until.get(name, 0.0) > self._simulation.now else 1.0

    def _partition(self, target: str, fault: Fault) -> None:
        """Partition two processes, in one direction or both."""
        simulation = self._simulation
        names = [LAUNCHER.name, *simulation.peers]
        place = fault.other_target * len(names)
        other = names[int(place)]
        until = simulation.now + fault.duration_s
        simulation.network.partition(target, other, until)
        if place % 1 < 0.5:
            simulation.network.partition(other, target, until)
        simulation.log("cut off from", other, "both ways" if place % 1 < 0.5 else "one way")

    def _pause(self, process: SimProcess, seconds: float, *, is_alone: bool = True) -> None:
        if process.inbox is None and process.is_up:
            process.inbox = []
            process.paused_at = self._simulation.now
            self._simulation.checker.deaths.on_pause(process, seconds)
            self._simulation.schedule_at(self._simulation.now + seconds, self._resume, process, is_alone)

    def _resume(self, process: SimProcess, is_alone: bool) -> None:
        if process.is_dead:
            return
        self._simulation.log(process.peer, "resumes")
        process.resumed_at = self._simulation.now
        if not is_alone:
            process.paused_at = self._simulation.now  # nothing is silent while the machine is paused
        waiting, process.inbox = process.inbox or [], None
        for callback, arguments in waiting:
            if not process.is_dead:
                callback(*arguments)
        if not process.is_dead:
            process.flush()

    def drain(self) -> None:
        """Shut the server down gracefully."""
        simulation = self._simulation
        simulation.log("drain")
        self.is_draining = True
        simulation.launcher.broadcast(Drain(), *simulation.shards.models)

    def load_or_unload(self, model: str, is_unload: bool) -> None:
        """Unload or load a model."""
        simulation = self._simulation
        simulation.log("unload" if is_unload else "load", model)
        frontend = simulation.processes[simulation.scenario.frontends[0]]
        conductor = simulation.peers[simulation.shards.conductor(model)]
        message = UnloadModel(0, model) if is_unload else LoadModel(0, model)
        simulation.schedule_for(0.0, frontend, frontend.send, conductor, message)

    def roll_weights(self) -> None:
        """Start a rolling update, once the previous one is complete."""
        simulation = self._simulation
        if simulation.launcher.rolled_version < simulation.weights_version:
            simulation.schedule_at(simulation.now + ROLL_RETRY_S, self.roll_weights)
            return
        simulation.weights_version += 1
        simulation.serving_versions.clear()
        simulation.log("weights version", simulation.weights_version)
        simulation.launcher.broadcast(RollWeights(simulation.weights_version), *simulation.shards.models)
