"""Discrete-event capacity simulation: a whole deployment in virtual time, to predict what clients receive and when.

The real cores decide. An engine provides outputs and latencies of batches; see `call_trace`. Messages arrive after a
fixed delay. There are no failures, lost frames or memory limits; see `simulation` for those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from mstar.conductor.core import ConductorCore
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.model import ConductorModel
from mstar.config import RuntimeConfig
from mstar.frontend import core
from mstar.plan.planned_model import PlannedModel
from mstar.wire import messages as m
from mstar.wire.message import MessageReceived, SendMessage, Tick
from mstar.wire.slo import Slo, duration_of
from mstar.wire.transport.actor_loop import TICK_INTERVAL_S
from mstar.worker.commands import BatchFinished, Command, Event, ExportFinished
from mstar.worker.core import WorkerCore
from mstar.worker.engine_thread import INLINE_BATCH_LIMIT_S
from mstar.worker.scheduling.policy import SchedulingPolicy
from mstar.worker.scheduling.scheduler import BatchLimits as WorkerLimits

HOP_S = 0.0005
"""Seconds of one hop between processes, and from an engine thread to its worker."""
START_AT_S = -0.5
"""Time at which processes start, so that they are up at time 0."""
TAIL_S = 1.0
"""Seconds to run after the last request, so that all processes release it."""
LAUNCHER = m.Peer("launcher", 0)
CONDUCTOR = m.Peer("conductor", 0)
FRONTEND = m.Peer("front", 0)


class Arrival(Protocol):
    """A future request: its time, model and SLO."""

    @property
    def at(self) -> float: ...  # noqa: D102 - see the class
    @property
    def request(self) -> Any: ...  # noqa: D102
    @property
    def model(self) -> str: ...  # noqa: D102
    @property
    def slo(self) -> Slo: ...  # noqa: D102


@dataclass(eq=False, slots=True)
class ClientResult:
    """What one client received."""

    submitted_at: float
    chunks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Time of arrival and duration of each output, in seconds."""
    ended_at: float = 0.0
    status: str = ""
    """Final status; the HTTP status of a rejected request."""
    retry_after: float = 0.0
    kinds: list[str] = field(default_factory=list[str])
    """Kind of each output."""


class Engine(Protocol):
    """Executes the commands of one worker in order. Only a batch takes time: its `BatchFinished.seconds`."""

    def execute(self, command: Command) -> BatchFinished | ExportFinished | None:
        """Execute a command and return its report, if it has one."""
        ...


class CapacitySimulation:
    """One simulated run. `engine` creates the engine of a worker; `order` replaces the scheduling policy."""

    def __init__(
        self,
        models: Mapping[str, PlannedModel],
        engine: Callable[[], Engine],
        *,
        options: RuntimeConfig | None = None,
        order: SchedulingPolicy | None = None,
        hop_s: float = HOP_S,
    ) -> None:
        options = options or RuntimeConfig()
        self.now = START_AT_S
        self.unfinished_requests = 0
        """Number of requests that have not ended."""
        self.hop_s = hop_s
        self._event_count = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        conductor_models = {name: ConductorModel.from_plans(model.model, model.plans) for name, model in models.items()}
        limits = ConductorLimits(
            max_running_requests=options.max_running_requests,
            max_queued_requests=options.max_queued_requests,
            heartbeat_timeout_s=inf,
            has_fixed_workers=True,
        )
        self._frontend = _SimFrontend(self, dict.fromkeys(models, CONDUCTOR))
        self._actors: dict[m.Peer, _SimConductor | _SimWorker | _SimFrontend] = {
            CONDUCTOR: _SimConductor(self, ConductorCore(CONDUCTOR, LAUNCHER, conductor_models, limits)),
            FRONTEND: self._frontend,
        }
        plans = {name: model.plans for name, model in models.items()}
        unbatched = {name: model.unbatched_keys() for name, model in models.items()}
        worker_limits = WorkerLimits(options.max_batch_size, options.max_undelivered_outputs, order, unbatched)
        for name in dict.fromkeys(name for model_plans in plans.values() for name in model_plans.workers):
            core = WorkerCore(m.Peer(name, 0), CONDUCTOR, plans, (), worker_limits)
            self._actors[core.peer] = _SimWorker(self, core, engine())
            self.send(core.peer, SendMessage(CONDUCTOR, m.Register()))

    def run(self, arrivals: Iterable[Arrival]) -> list[ClientResult]:
        """Submit requests at their times (from 0) and run until all have ended. Can be called once."""
        results: list[ClientResult] = []
        for arrival in arrivals:
            results.append(ClientResult(arrival.at))
            self._schedule_at(arrival.at, self._frontend.submit, f"{len(results)}", arrival, results[-1])
        self.unfinished_requests = len(results)
        self._tick()
        while self.unfinished_requests:
            self._run_next()
        until = self.now + TAIL_S
        while self._heap[0][0] < until:
            self._run_next()
        return results

    # ---------------------------------------------------------------- time
    def send(self, sender: m.Peer, send: SendMessage) -> None:
        """Deliver a message after one hop; messages to the launcher are dropped."""
        if (actor := self._actors.get(send.to)) is not None:
            self.schedule_after(self.hop_s, actor.step, MessageReceived(sender, send.message))

    def schedule_after(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back after some seconds."""
        self._schedule_at(self.now + seconds, callback, *arguments)

    def _schedule_at(self, when: float, callback: Callable[..., None], *arguments: Any) -> None:
        self._event_count += 1
        heappush(self._heap, (when, self._event_count, callback, arguments))

    def _run_next(self) -> None:
        self.now, _, callback, arguments = heappop(self._heap)
        callback(*arguments)

    def _tick(self) -> None:
        for actor in self._actors.values():
            actor.step(Tick())
        self.schedule_after(TICK_INTERVAL_S, self._tick)


class _SimConductor:
    """Drives a conductor core."""

    def __init__(self, simulation: CapacitySimulation, core: ConductorCore) -> None:
        self._simulation = simulation
        self._core = core

    def step(self, event: MessageReceived | Tick) -> None:
        for send in self._core.step(self._simulation.now, event):
            self._simulation.send(CONDUCTOR, send)


class _SimWorker:
    """Drives a worker core and its engine, which executes one command at a time."""

    def __init__(self, simulation: CapacitySimulation, core: WorkerCore, engine: Engine) -> None:
        self._simulation = simulation
        self._core = core
        self._engine = engine
        self._commands: deque[Command] = deque()
        self._is_busy = False

    def step(self, event: Event) -> None:
        for action in self._core.step(self._simulation.now, event):
            if isinstance(action, SendMessage):
                self._simulation.send(self._core.peer, action)
            else:
                self._commands.append(action)
        self._execute_ready(is_awake=False)

    def _execute_ready(self, *, is_awake: bool) -> None:
        """Execute commands up to the next batch. A short batch runs inline, unless the engine thread is awake."""
        while self._commands and not self._is_busy:
            report = self._engine.execute(self._commands.popleft())
            if isinstance(report, BatchFinished):
                self._is_busy = True
                hop_s = self._simulation.hop_s if is_awake or report.seconds >= INLINE_BATCH_LIMIT_S else 0.0
                self._simulation.schedule_after(report.seconds, self._batch_finished, report, hop_s)
            elif report is not None:
                self._simulation.schedule_after(self._simulation.hop_s, self.step, report)

    def _batch_finished(self, report: BatchFinished, hop_s: float) -> None:
        self._is_busy = False
        self._simulation.schedule_after(hop_s, self.step, report)
        self._execute_ready(is_awake=True)  # queued commands do not wait for the report to arrive


class _SimFrontend:
    """Drives a front-end core, and clients that consume outputs at once and send no further input."""

    def __init__(self, simulation: CapacitySimulation, conductors: Mapping[str, m.Peer]) -> None:
        self._simulation = simulation
        # Without failures nothing is computed twice, so the digest for comparison can be empty.
        self._core = core.FrontendCore(FRONTEND, conductors, lambda _: b"")
        self._clients: dict[str, tuple[Arrival, ClientResult]] = {}

    def submit(self, rid: str, arrival: Arrival, result: ClientResult) -> None:
        self._clients[rid] = (arrival, result)
        self.step(core.RequestOpened(m.Submit(rid, arrival.model, m.Value(arrival.request), slo=arrival.slo)))

    def step(self, event: core.Event) -> None:
        for action in self._core.step(self._simulation.now, event):
            if isinstance(action, SendMessage):
                self._simulation.send(FRONTEND, action)
            elif isinstance(action, core.Deliver):
                self._deliver(action)
            elif isinstance(action, core.AwaitingInput):
                self.step(core.InputSent(action.rid, None))
            else:
                self._end(action)

    def _deliver(self, event: core.Deliver) -> None:
        arrival, result = self._clients[event.rid]
        seconds = duration_of(event.kind, event.value, dict(event.clock), arrival.slo)
        result.chunks.append((self._simulation.now, seconds or 0.0))
        result.kinds.append(event.kind)
        self.step(core.OutputsConsumed(event.rid, event.kind, event.index + 1))

    def _end(self, event: core.RequestEnded) -> None:
        _, result = self._clients.pop(event.rid)
        result.ended_at, result.status = self._simulation.now, str(event.end.status)
        if isinstance(event.end, m.RequestRejected):
            result.retry_after = event.end.retry_after_s
        self._simulation.unfinished_requests -= 1
