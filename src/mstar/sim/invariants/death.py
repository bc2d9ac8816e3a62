"""Invariants of dead and silent processes.

| invariant | meaning |
|---|---|
| I10 | a worker that does not respond is detected in time, and a conductor that hangs is replaced |
| I13 | no request kills worker after worker |
| I20 | only a process that was paused for longer than its limit is killed: a pause of an observer kills nothing |
| I21 | only a request that crashes workers is poison: kills from outside make no request poison |
"""

from __future__ import annotations

from collections import Counter, defaultdict

from mstar.sim.environment import Environment
from mstar.sim.history import Violation
from mstar.sim.processes import AnyProcess, SimConductor, SimWorker
from mstar.sim.scenario import SimClient
from mstar.wire import messages as m

FAILURE_DETECTION_S = 1.6
"""Maximum seconds until a worker that does not respond is detected."""
CONDUCTOR_REPLACEMENT_S = 5.5
"""Maximum seconds until a conductor that does not respond is killed: the limit, a tick and the latency of messages."""
MIN_WORKER_PAUSE_S, MIN_CONDUCTOR_PAUSE_S = 119.0, 4.0
"""Seconds of a pause before a worker, or a conductor, can be killed: the limits, less the latency of messages."""
MAX_MESSAGE_DELAY_S = 0.5
"""Maximum seconds until the first message after a pause arrives."""
MAX_POISON_KILLS = 3
"""Maximum workers that one request can kill under one conductor. A spread request runs on several at once."""
UNDETECTED_FAULTS = frozenset({"kill", "cut", "pause", "drop", "delay"})
"""Faults after which a conductor can miss the crash suspects of a worker."""


class DeathInvariants:
    """Checks I10, I13, I20 and I21 in one simulation."""

    def __init__(self, simulation: Environment) -> None:
        self._simulation = simulation
        self._clients = {client.rid: client for client in simulation.scenario.clients}
        self._deaths_by_request: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._crashes: Counter[str] = Counter()

    def on_process_died(self, process: AnyProcess, suspects: list[m.Suspect], cause: m.ExitCause) -> None:
        """A process died while it computed these requests."""
        if cause is not m.ExitCause.EXTERNAL:
            for suspect in suspects:
                self._deaths_by_request[suspect.rid].append((suspect.calls_completed, len(suspects)))
        if not isinstance(process, SimWorker):
            return
        clients = [self._clients[suspect.rid] for suspect in suspects]
        trapped = [client for client in clients if client.request.trap == "crash" and client.model != "guide"]
        if len(trapped) == 1 and not self._simulation.scenario.kinds & UNDETECTED_FAULTS:
            rid = trapped[0].rid
            self._crashes[rid] += 1
            conductor = self._simulation.peers[self._simulation.shards.conductor(trapped[0].model)]
            if self._crashes[rid] > MAX_POISON_KILLS * (conductor.incarnation + 1):
                raise Violation(f"I13 {rid} has killed {self._crashes[rid]} workers")

    def is_poison(self, client: SimClient) -> bool:
        """Whether it crashes workers, and two died at the same call of it, one of them while it ran alone."""
        if client.request.trap != "crash" or not client.hits_trap:
            raise Violation(f"I21 {client.rid} is poison and crashes no worker")
        deaths = self._deaths_by_request[client.rid]
        return any(
            abs(calls - other) <= 1 and 1 in (count, count_then)
            for number, (calls, count) in enumerate(deaths)
            for other, count_then in deaths[:number]
        )

    def on_pause(self, process: AnyProcess, seconds: float) -> None:
        """A process is paused."""
        simulation = self._simulation
        if isinstance(process, SimConductor) and simulation.scenario.has_long_pauses:
            if seconds > CONDUCTOR_REPLACEMENT_S:
                when = simulation.now + CONDUCTOR_REPLACEMENT_S
                simulation.schedule_at(when, self._check_conductor_replaced, process, simulation.now)
            return
        if not isinstance(process, SimWorker) or seconds <= FAILURE_DETECTION_S or "cut" in simulation.scenario.kinds:
            return
        conductor = simulation.processes.get(simulation.shards.conductor(process.peer.name))
        if isinstance(conductor, SimConductor) and conductor.is_up and conductor.inbox is None:
            simulation.schedule_at(
                simulation.now + FAILURE_DETECTION_S, self._check_failure_detected, process, conductor, simulation.now
            )

    def _check_failure_detected(self, process: SimWorker, conductor: SimConductor, since: float) -> None:
        is_watched = not conductor.is_dead and conductor.inbox is None and not process.is_dead
        if is_watched and conductor.resumed_at < since and conductor.core.membership.is_responsive(process.peer):
            raise Violation(f"I10 {process.peer} did not respond for {FAILURE_DETECTION_S} s and was not detected")

    def _check_conductor_replaced(self, process: SimConductor, since: float) -> None:
        launcher = self._simulation.launcher
        is_watched = launcher.inbox is None and launcher.resumed_at < since
        if is_watched and not process.is_dead:
            raise Violation(f"I10 {process.peer} did not respond for {CONDUCTOR_REPLACEMENT_S} s and was not replaced")

    def on_kill(self, peer: m.Peer, reason: str) -> None:
        """A conductor has a worker killed, or the launcher kills a conductor."""
        process = self._simulation.processes.get(peer.name)
        if process is None or process.peer != peer:
            return
        min_pause_s = MIN_WORKER_PAUSE_S if isinstance(process, SimWorker) else MIN_CONDUCTOR_PAUSE_S
        paused_until = self._simulation.now if process.inbox is not None else process.resumed_at
        is_just_back = self._simulation.now - paused_until < MAX_MESSAGE_DELAY_S
        if paused_until - process.paused_at < min_pause_s or not is_just_back:
            raise Violation(f"I20 {peer} is healthy and is killed: {reason}")
