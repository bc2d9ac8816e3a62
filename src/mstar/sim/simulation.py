"""Deterministic discrete-event simulation of a deployment: virtual time, event queue, processes that start and die.

A seed determines a run event by event. Frames in transit are in `network`, faults in `faults`, checks in `invariants`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

from mstar.sim.client_inputs import ClientInputs
from mstar.sim.faults import FaultInjector
from mstar.sim.history import History
from mstar.sim.invariants.checker import InvariantChecker
from mstar.sim.models import planned_model
from mstar.sim.network import Network
from mstar.sim.process import TICK_S, SimProcess
from mstar.sim.processes import LAUNCHER, AnyProcess, SimConductor, SimFrontend, SimLauncher, SimWorker
from mstar.sim.scenario import Scenario, SimClient
from mstar.sim.shards import ConductorShards
from mstar.sim.worker_processes import MAX_SUCCESSOR_START_S, SimWorkerProcesses
from mstar.wire import messages as m

QUIET_POLL_S = 0.3
"""Seconds between checks whether all work is done."""
MAX_QUIET_WAIT_S = 60.0
"""Maximum seconds after the last fault until all work is done."""
MAX_DEATH_DETECTION_S = 0.05
"""Maximum seconds until the launcher sees that a process died."""
MAX_START_S = 0.3
"""Maximum seconds until a restarted process is up."""
MAX_FIRST_START_S = 0.02
"""Maximum seconds until a process is up at the start of the run."""


class Simulation:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, trace: list[str] | None = None) -> None:
        self.scenario = scenario
        self.trace = trace
        self.now = 0.0
        self.rng = random.Random(scenario.seed * 2 + 1)
        self.planned_models = {
            name: planned_model(
                name,
                scenario.workers,
                variant,
                is_elastic=scenario.is_elastic,
                prefix=f"{name}-" if scenario.is_sharded else "w",
            )
            for name, variant in scenario.models.items()
        }
        self.shards = ConductorShards(scenario, self.planned_models)
        self.history = History()
        self.checker = InvariantChecker(self)
        self.client_inputs = ClientInputs(self.history)
        self.network = Network(self)
        self.fault_injector = FaultInjector(self)
        self.non_idempotent_calls: list[tuple[int, ...]] = []
        """Arguments of all executed calls of non-idempotent ops."""
        self.events = 0
        self.deaths: Counter[str] = Counter()
        self.hash = 0
        self.launcher = SimLauncher(self, LAUNCHER)
        self.launcher.is_up = True
        self.worker_processes = SimWorkerProcesses(self)
        names = self.worker_processes.names()
        self.workers = tuple(names)
        """Names of all worker processes."""
        self.peers = {name: m.Peer(name, 0) for name in (*self.shards.models, *scenario.frontends, *names)}
        """The newest incarnation of each process, live or dead."""
        self.processes: dict[str, AnyProcess] = {}
        """Live processes by name."""
        groups = [group for planned in self.planned_models.values() for group in planned.plans.replica_groups]
        self.inactive = {*names} - {name for workers, min_replicas in groups for name in workers[:min_replicas]}
        """Workers that are stopped on purpose."""
        self.weights_version = 0
        """The newest version of the weights."""
        self.weights_versions: dict[m.Peer, int] = {}
        """The version that each worker has loaded."""
        self.serving_versions: dict[str, int] = {}
        """By conductor that rolled back the last update, the version that its workers load."""
        self._never_started = set(self.inactive)
        self._initial_workers = [name for name in names if name not in self.inactive]
        self._restarting: set[str] = set()
        """Dead workers whose next incarnation has not started."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    # ---------------------------------------------------------------- time
    def run(self) -> None:
        """Run until all work is done. Raises Violation."""
        scenario = self.scenario
        for name in self.peers:
            if name not in self.inactive:
                self._spawn(name)
        self._tick(self.launcher)
        for client in scenario.clients:
            self.schedule_at(client.submit_at, self._submit, client)
        for fault in scenario.faults:
            self.schedule_at(fault.at, self.fault_injector.inject, fault)
        if scenario.drain_at is not None:
            self.schedule_at(scenario.drain_at, self.fault_injector.drain)
        for when in scenario.weight_rolls:
            self.schedule_at(when, self.fault_injector.roll_weights)
        for when, model, is_unload in scenario.model_commands:
            self.schedule_at(when, self.fault_injector.load_or_unload, model, is_unload)
        self.schedule_at(scenario.end, self._check_quiet)
        heap = self._heap
        while heap:
            self.now, count, callback, arguments = heappop(heap)
            self.hash = hash((self.hash, self.now, count))
            callback(*arguments)

    def schedule_at(self, when: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back at a time."""
        self.events += 1
        heappush(self._heap, (when, self.events, callback, arguments))

    def schedule_for(self, seconds: float, process: SimProcess, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back after some seconds, if the process is alive by then."""
        self.schedule_at(self.now + seconds, self._run_in_process, process, callback, arguments)

    def _run_in_process(self, process: SimProcess, callback: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if process.is_dead:
            return
        if process.inbox is not None:
            process.inbox.append((callback, arguments))
            return
        callback(*arguments)
        process.flush()

    def log(self, *parts: Any) -> None:
        """Add a line to the trace and to the hash of the run."""
        text = " ".join(map(str, parts))
        self.hash ^= crc32(text.encode())
        if self.trace is not None:
            self.trace.append(f"{self.now:8.4f}  {text}")

    def _check_quiet(self) -> None:
        """End the run if all work is done."""
        if self.checker.final_state.is_quiet():
            self.checker.final_state.check()
            self._heap.clear()
        elif self.now > self.scenario.end + MAX_QUIET_WAIT_S:
            self.checker.final_state.raise_not_quiet()
        else:
            self.schedule_at(self.now + QUIET_POLL_S, self._check_quiet)

    # ---------------------------------------------------------------- start and death of processes
    def _spawn(self, name: str) -> None:
        peer = self.peers[name]
        process: AnyProcess
        if name in self.shards:
            process = SimConductor(self, peer)
        elif name in self.scenario.frontends:
            # On a single host, where workers can have successors, the front end is in the process of the launcher.
            is_single_host = self.scenario.conductor_limits.can_start_successors
            process = SimFrontend(self, peer, self.launcher.group if is_single_host else None)
        else:
            process = SimWorker(self, peer)
        others = (other.peer for other in self.processes.values())
        peers = [LAUNCHER, *(other for other in others if self.shards.has_link(name, other.name))]
        self.processes[name] = process
        max_start_s = MAX_START_S if peer.incarnation else MAX_FIRST_START_S
        if self.worker_processes.is_successor(name):
            max_start_s = MAX_SUCCESSOR_START_S
        self.schedule_at(self.now + self.rng.random() * max_start_s, self.mark_up, process, peers)

    def mark_up(self, process: AnyProcess, peers: list[m.Peer]) -> None:
        """A process has started: it registers with these peers."""
        if process.is_dead:
            return
        if isinstance(process, SimWorker) and self.now < self.fault_injector.broken_until:
            self.kill(process.peer, "it cannot load its weights", m.ExitCause.CRASH)
        else:
            self.log(process.peer, "is up")
            process.is_up, process.up_at = True, self.now
            self.worker_processes.on_up(process.peer.name)
            process.start(peers)
            process.flush()
            self.schedule_at(self.now + TICK_S * self.rng.random(), self._tick, process)

    def _tick(self, process: SimProcess) -> None:
        if process.is_dead:
            return
        if process.inbox is None:
            process.run_tick()
        self.schedule_at(self.now + TICK_S, self._tick, process)

    def kill(self, peer: m.Peer, reason: str, cause: m.ExitCause) -> None:
        """Kill an incarnation, if it is live."""
        process = self.processes.get(peer.name)
        if process is None or process.peer != peer:
            return
        self.log(peer, "dies:", reason)
        del self.processes[peer.name]
        self._restarting.add(peer.name)
        process.is_dead = True
        suspects = process.engine.suspects if isinstance(process, SimWorker) else []
        self.checker.deaths.on_process_died(process, suspects, cause)
        failed_starts = self.worker_processes.on_died(peer.name, was_up=process.is_up)
        exited = m.ProcessExited(peer, reason, suspects, failed_starts, cause=cause)
        self.schedule_at(self.now + MAX_DEATH_DETECTION_S * self.rng.random(), self._report_death, exited)

    def _report_death(self, exited: m.ProcessExited) -> None:
        """The launcher detects a death, reports it, and restarts the process with exponential backoff."""
        peer = exited.peer
        self.launcher.mark_peer_dead(peer)
        self.launcher.broadcast(exited, self.shards.conductor(peer.name))
        self.deaths[peer.name] += 1
        if peer.name in self.shards:
            self.worker_processes.on_conductor_died(peer.name)
        self.worker_processes.on_exited(peer)
        deaths = self.deaths[peer.name]
        backoff_s = 0.0 if deaths == 1 else min(0.1 * 2 ** (deaths - 2), 1.0)
        self.schedule_at(self.now + backoff_s, self._restart, peer)

    def _restart(self, peer: m.Peer) -> None:
        self._restarting.discard(peer.name)
        if peer.name not in self.inactive:
            self.peers[peer.name] = m.Peer(peer.name, peer.incarnation + 1)
            self._spawn(peer.name)
        if peer.name in self.shards:  # a new conductor has all models loaded
            for name in self.shards.workers[peer.name]:
                if name in self._initial_workers:
                    self.start_worker(name)

    def start_worker(self, worker: str, beside: m.Peer | None = None) -> None:
        """Start a worker if it does not run, or its successor."""
        name = self.worker_processes.choose(worker, beside)
        if name is None:
            return
        self.log(name, "is requested")
        self.inactive.discard(name)
        if name in self._never_started:
            self._never_started.discard(name)
            self._spawn(name)
        elif name not in self._restarting:
            self._restart(self.peers[name])

    def stop_worker(self, peer: m.Peer) -> None:
        """Stop a worker and do not restart it."""
        if self.peers[peer.name] == peer:
            self.inactive.add(peer.name)
            self.worker_processes.on_stopped(peer.name)
            self.kill(peer, "stopped by its conductor", m.ExitCause.EXTERNAL)

    # ---------------------------------------------------------------- clients
    def _submit(self, client: SimClient) -> None:
        frontend = self._frontend(client)
        if client.disconnect_at is not None:
            self.schedule_at(client.disconnect_at, self._disconnect, client)
        if client.stalled_until:
            self.schedule_at(client.stalled_until, self._consume, client)
        for when, value in client.inputs:
            self.schedule_at(when, self._send_input, client, value)
        self.checker.on_submit(client)
        self._run_in_process(frontend, frontend.submit, (client,))

    def _send_input(self, client: SimClient, value: int | None) -> None:
        frontend = self._frontend(client)
        self._run_in_process(frontend, frontend.send_input, (client, value))

    def _disconnect(self, client: SimClient) -> None:
        frontend = self._frontend(client)
        self._run_in_process(frontend, frontend.disconnect, (client,))

    def _consume(self, client: SimClient) -> None:
        frontend = self._frontend(client)
        self._run_in_process(frontend, frontend.consume_outputs, (client,))

    def _frontend(self, client: SimClient) -> SimFrontend:
        frontend = self.processes[client.front]
        assert isinstance(frontend, SimFrontend)
        return frontend
