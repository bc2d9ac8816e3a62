"""The world: virtual time, and the processes that are born and die in it.

One seed gives one run, event by event. What is on its way is in `net`, what goes wrong in `trouble`; whether what
happened may happen is judged in `judge`.
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
from mstar.sim.invariants import InvariantChecker
from mstar.sim.models import planned_model
from mstar.sim.network import Network
from mstar.sim.process import TICK_S, SimProcess
from mstar.sim.processes import LAUNCHER, AnyProcess, SimConductor, SimFrontend, SimLauncher, SimWorker
from mstar.sim.scenario import Scenario, SimClient
from mstar.sim.shards import ConductorShards
from mstar.wire import messages as m

QUIET_POLL_S = 0.3
"""Seconds between two looks whether all is quiet."""
MAX_QUIET_WAIT_S = 60.0
"""So many seconds after the end of trouble everything has to be quiet."""
MAX_DEATH_DETECTION_S, MAX_START_S = 0.05, 0.3
"""How long it may take until a death is seen, and until a process is up."""


class Simulation:
    """One run."""

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
        """Every call that must not be repeated, as often as it was run."""
        self.events = 0
        self.deaths: Counter[str] = Counter()
        self.hash = 0
        self.launcher = SimLauncher(self, LAUNCHER)
        self.launcher.is_up = True
        names = dict.fromkeys(name for served in self.planned_models.values() for name in served.plans.workers)
        self.workers = tuple(names)
        self.peers = {name: m.Peer(name, 0) for name in (*self.shards.models, *scenario.frontends, *names)}
        """The newest life of each process, whether it still lasts or not."""
        self.processes: dict[str, AnyProcess] = {}
        """The processes that are there."""
        crews = [crew for served in self.planned_models.values() for crew in served.plans.replica_groups]
        self.inactive = {*names} - {name for workers, least in crews for name in workers[:least]}
        """Workers that do not run and are not to."""
        self.weights_version = 0
        """The newest edition of the weights."""
        self.weights_versions: dict[m.Peer, int] = {}
        """The one that each worker has loaded."""
        self._never_started = set(self.inactive)
        self._initial_workers = [name for name in names if name not in self.inactive]
        self._restarting: set[str] = set()
        """Workers that are dead and whose next life has not begun."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    # ---------------------------------------------------------------- time
    def run(self) -> None:
        """Run until all is quiet. Raises Violation."""
        scenario = self.scenario
        for name in self.peers:
            if name not in self.inactive:
                self._spawn(name)
        self._tick(self.launcher)
        for client in scenario.clients:
            self.schedule_at(client.submit_at, self._submit, client)
        for strike in scenario.faults:
            self.schedule_at(strike.at, self.fault_injector.inject, strike)
        if scenario.drain_at is not None:
            self.schedule_at(scenario.drain_at, self.fault_injector.drain)
        for when in scenario.weight_rolls:
            self.schedule_at(when, self.fault_injector.roll_weights)
        for when, model, is_rest in scenario.model_commands:
            self.schedule_at(when, self.fault_injector.load_or_unload, model, is_rest)
        self.schedule_at(scenario.end, self._check_quiet)
        heap = self._heap
        while heap:
            self.now, count, do, given = heappop(heap)
            self.hash = hash((self.hash, self.now, count))
            do(*given)

    def schedule_at(self, when: float, do: Callable[..., None], *given: Any) -> None:
        """Have something done at a time."""
        self.events += 1
        heappush(self._heap, (when, self.events, do, given))

    def schedule_for(self, seconds: float, life: SimProcess, do: Callable[..., None], *given: Any) -> None:
        """Have a life do something after so many seconds, if it lasts so long."""
        self.schedule_at(self.now + seconds, self._run_in_process, life, do, given)

    def _run_in_process(self, life: SimProcess, do: Callable[..., None], given: tuple[Any, ...]) -> None:
        if life.is_dead:
            return
        if life.inbox is not None:
            life.inbox.append((do, given))
            return
        do(*given)
        life.flush()

    def log(self, *what: Any) -> None:
        """Something that a reader of the trace wants to know."""
        text = " ".join(map(str, what))
        self.hash ^= crc32(text.encode())
        if self.trace is not None:
            self.trace.append(f"{self.now:8.4f}  {text}")

    def _check_quiet(self) -> None:
        """End the run if all is quiet."""
        if self.checker.is_quiet():
            self.checker.check_final_state()
            self._heap.clear()
        elif self.now > self.scenario.end + MAX_QUIET_WAIT_S:
            self.checker.raise_not_quiet()
        else:
            self.schedule_at(self.now + QUIET_POLL_S, self._check_quiet)

    # ---------------------------------------------------------------- birth and death
    def _spawn(self, name: str) -> None:
        peer = self.peers[name]
        life: AnyProcess
        if name in self.shards:
            life = SimConductor(self, peer)
        elif name in self.scenario.frontends:
            life = SimFrontend(self, peer)
        else:
            life = SimWorker(self, peer, self.peers[self.shards.conductor(name)])
            life.core.weights_version = self.weights_versions[peer] = self.weights_version
        roster = [LAUNCHER, *(one.peer for one in self.processes.values() if self.shards.has_link(name, one.peer.name))]
        self.processes[name] = life
        is_first = not peer.incarnation
        self.schedule_at(
            self.now + self.rng.random() * (0.02 if is_first else MAX_START_S), self._mark_up, life, roster
        )

    def _mark_up(self, life: AnyProcess, roster: list[m.Peer]) -> None:
        if not life.is_dead:
            self.log(life.peer, "is up")
            life.is_up = True
            life.start(roster)
            life.flush()
            self.schedule_at(self.now + TICK_S * self.rng.random(), self._tick, life)

    def _tick(self, life: SimProcess) -> None:
        if life.is_dead:
            return
        if life.inbox is None:
            life.run_tick()
        self.schedule_at(self.now + TICK_S, self._tick, life)

    def kill(self, peer: m.Peer, why: str) -> None:
        """End a life."""
        life = self.processes.get(peer.name)
        if life is None or life.peer != peer:
            return
        self.log(peer, "dies:", why)
        del self.processes[peer.name]
        self._restarting.add(peer.name)
        life.is_dead = True
        suspects = life.engine.suspects if isinstance(life, SimWorker) else []
        self.checker.on_process_died(life, suspects)
        self.schedule_at(self.now + MAX_DEATH_DETECTION_S * self.rng.random(), self._report_death, peer, why, suspects)

    def _report_death(self, peer: m.Peer, why: str, suspects: list[m.Suspect]) -> None:
        """The launcher sees that a process is dead."""
        self.launcher.mark_peer_dead(peer)
        self.launcher.broadcast(m.ProcessExited(peer, why, suspects), self.shards.conductor(peer.name))
        self.deaths[peer.name] += 1
        deaths = self.deaths[peer.name]
        wait = 0.0 if deaths == 1 else min(0.1 * 2 ** (deaths - 2), 1.0)
        self.schedule_at(self.now + wait, self._restart, peer)

    def _restart(self, peer: m.Peer) -> None:
        self._restarting.discard(peer.name)
        if peer.name not in self.inactive:
            self.peers[peer.name] = m.Peer(peer.name, peer.incarnation + 1)
            self._spawn(peer.name)
        if peer.name in self.shards:  # it does not know of models that rest
            for name in self.shards.workers[peer.name]:
                if name in self._initial_workers:
                    self.start_worker(name)

    def start_worker(self, name: str) -> None:
        """Start a worker, if it does not run."""
        if name not in self.inactive:
            return
        self.log(name, "is wanted")
        self.inactive.discard(name)
        if name in self._never_started:
            self._never_started.discard(name)
            self._spawn(name)
        elif name not in self._restarting:
            self._restart(self.peers[name])

    def stop_worker(self, peer: m.Peer) -> None:
        """End a worker that is not to be started again."""
        if self.peers[peer.name] == peer:
            self.inactive.add(peer.name)
            self.kill(peer, "nobody uses it any more")

    # ---------------------------------------------------------------- clients
    def _submit(self, client: SimClient) -> None:
        front = self._frontend(client)
        if client.disconnect_at is not None:
            self.schedule_at(client.disconnect_at, self._disconnect, client)
        if client.stalled_until:
            self.schedule_at(client.stalled_until, self._consume, client)
        for when, value in client.inputs:
            self.schedule_at(when, self._send_input, client, value)
        self.checker.on_submit(client)
        self._run_in_process(front, front.submit, (client,))

    def _send_input(self, client: SimClient, value: int | None) -> None:
        front = self._frontend(client)
        self._run_in_process(front, front.send_input, (client, value))

    def _disconnect(self, client: SimClient) -> None:
        front = self._frontend(client)
        self._run_in_process(front, front.disconnect, (client,))

    def _consume(self, client: SimClient) -> None:
        front = self._frontend(client)
        self._run_in_process(front, front.consume_outputs, (client,))

    def _frontend(self, client: SimClient) -> SimFrontend:
        front = self.processes[client.front]
        assert isinstance(front, SimFrontend)
        return front
