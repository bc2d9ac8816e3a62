"""Processes of simulated workers, as in `launch/worker_processes.py`: successors in rolling updates, failed starts."""

from __future__ import annotations

from collections import Counter

from mstar.conductor.scaling.crash_loops import CrashLoopTuning
from mstar.sim.environment import Environment
from mstar.wire import messages as m

MAX_SUCCESSOR_START_S = 2.0
"""Maximum seconds until a successor is up: new requests must not wait for it."""


class SimWorkerProcesses:
    """Which processes the workers of one simulation have."""

    def __init__(self, simulation: Environment) -> None:
        self._simulation = simulation
        self._successors: set[str] = set()
        """Processes that were started beside another process of their worker, which has not exited."""
        self._rolled_back: set[str] = set()
        """Successors of an update that was rolled back, which have not stopped."""
        self._failed_starts: Counter[str] = Counter()
        """By process name, its starts in a row after which it was never up. Counted where weights can be broken."""
        self._crash_loops: set[str] = set()
        """Workers that were in a crash loop at some time."""

    def names(self) -> dict[str, None]:
        """Return the names of all processes: those of the placements, then the second ones."""
        planned_models = self._simulation.planned_models.values()
        names = dict.fromkeys(name for planned in planned_models for name in planned.plans.workers)
        if self._simulation.scenario.conductor_limits.can_start_successors:
            names |= dict.fromkeys(name for worker in names for name in m.process_names(worker))
        return names

    def is_successor(self, name: str) -> bool:
        """Return whether a process was started beside another one, which has not exited."""
        return name in self._successors

    def choose(self, worker: str, beside: m.Peer | None) -> str | None:
        """Return the process to start for a worker, or as its successor; None if there is nothing to start."""
        simulation = self._simulation
        own = [name for name in m.process_names(worker) if name in simulation.peers]
        needed = [name for name in own if name not in simulation.inactive]
        if beside is None:
            return None if needed else own[0]
        running = [simulation.peers[name] for name in needed if name in simulation.processes]
        if len(needed) == len(own) or running != [beside]:
            return None
        (successor,) = {*own} - {*needed}
        self._successors.add(successor)
        self._rolled_back.discard(successor)
        return successor

    def on_stopped(self, name: str) -> None:
        """A process is stopped on purpose."""
        self._successors.discard(name)
        self._rolled_back.discard(name)

    def on_rolled_back(self, conductor: str) -> None:
        """The update of a conductor was rolled back."""
        own = self._successors.intersection(self._simulation.shards.processes(conductor))
        self._successors -= own
        self._rolled_back |= own

    def on_conductor_died(self, conductor: str) -> None:
        """Kill successors of an update that was rolled back under a conductor that has died."""
        for name in sorted(self._rolled_back.intersection(self._simulation.shards.processes(conductor))):
            self._simulation.stop_worker(self._simulation.peers[name])

    def on_up(self, name: str) -> None:
        """A process is up."""
        self._failed_starts.pop(name, None)

    def on_died(self, name: str, *, was_up: bool) -> int:
        """A process dies; return the number of its failed starts in a row."""
        if not was_up and "broken" in self._simulation.scenario.kinds:
            self._failed_starts[name] += 1
            if self._failed_starts[name] >= CrashLoopTuning().min_failed_starts:
                self._crash_loops.add(self._simulation.peers[name].worker)
        return self._failed_starts[name]

    def had_crash_loop(self, model: str) -> bool:
        """Return whether a worker of a model was in a crash loop: its requests can be rejected."""
        return not self._crash_loops.isdisjoint(self._simulation.planned_models[model].plans.workers)

    def on_exited(self, peer: m.Peer) -> None:
        """The launcher sees an exit: a process that has a successor is not needed any more."""
        for successor in self._successors.intersection(m.process_names(peer.worker)) - {peer.name}:
            self._successors.discard(successor)
            self._simulation.inactive.add(peer.name)
