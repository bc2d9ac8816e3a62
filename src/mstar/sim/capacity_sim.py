"""A rehearsal: a whole deployment in virtual time, to see what clients would get of it and when.

The real cores decide. How long a batch takes and what it gives, an engine says: see `book`. All that is said arrives, a
fixed time later. Nobody dies here, no frame is lost and no memory runs out: for what then happens there is `world`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from mstar.conductor.core import ConductorCore, ConductorLimits, ConductorModel
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
"""Seconds from one process to another, and from an engine's thread to its worker."""
START_AT_S = -0.5
"""When processes start: who comes at 0 finds them there."""
TAIL_S = 1.0
"""For so many seconds after the last request time goes on, so that everybody can let go of it."""
LAUNCHER, CONDUCTOR, FRONT = m.Peer("launcher", 0), m.Peer("conductor", 0), m.Peer("front", 0)


class Arrival(Protocol):
    """A request that will come: when, to which model, and what its client is promised."""

    @property
    def at(self) -> float: ...  # noqa: D102 - said above
    @property
    def request(self) -> Any: ...  # noqa: D102
    @property
    def model(self) -> str: ...  # noqa: D102
    @property
    def slo(self) -> Slo: ...  # noqa: D102


@dataclass(eq=False, slots=True)
class ClientResult:
    """What one client got: when, and how many seconds of it."""

    submitted_at: float
    chunks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    ended_at: float = 0.0
    status: str = ""
    """ok, or what else it came to; of one who was refused, the status in HTTP."""
    retry_after: float = 0.0


class Engine(Protocol):
    """What executes the commands of one worker, in order. Only a batch takes time; what came of it says how much."""

    def execute(self, command: Command) -> BatchFinished | ExportFinished | None:
        """What came of it."""
        ...


class CapacitySimulation:
    """One run of a deployment. `engine` makes the engine of a worker, `order` is another rule for the next batch."""

    def __init__(
        self,
        deployed: Mapping[str, PlannedModel],
        engine: Callable[[], Engine],
        *,
        options: RuntimeConfig | None = None,
        order: SchedulingPolicy | None = None,
        hop_s: float = HOP_S,
    ) -> None:
        options = options or RuntimeConfig()
        self.now = START_AT_S
        self.unfinished_requests = 0
        """How many requests have not ended."""
        self.hop_s = hop_s
        self._event_count = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        served = {name: ConductorModel.from_plans(one.model, one.plans) for name, one in deployed.items()}
        limits = ConductorLimits(
            max_running_requests=options.max_running_requests,
            max_queued_requests=options.max_queued_requests,
            heartbeat_timeout_s=inf,
            has_fixed_workers=True,
        )
        self._frontend = _SimFrontend(self, dict.fromkeys(served, CONDUCTOR))
        self._actors: dict[m.Peer, _SimConductor | _SimWorker | _SimFrontend] = {
            CONDUCTOR: _SimConductor(self, ConductorCore(CONDUCTOR, LAUNCHER, served, limits)),
            FRONT: self._frontend,
        }
        plans = {name: one.plans for name, one in deployed.items()}
        single = {name: one.unbatched_keys() for name, one in deployed.items()}
        sharing = WorkerLimits(options.max_batch_size, options.max_undelivered_outputs, order, single)
        for name in dict.fromkeys(name for one in plans.values() for name in one.workers):
            core = WorkerCore(m.Peer(name, 0), CONDUCTOR, plans, (), sharing)
            self._actors[core.peer] = _SimWorker(self, core, engine())
            self.send(core.peer, SendMessage(CONDUCTOR, m.Register()))

    def run(self, arrivals: Iterable[Arrival]) -> list[ClientResult]:
        """Have requests come at their times, from 0 on; what each got, when all have ended. It is done once."""
        receipts: list[ClientResult] = []
        for arrival in arrivals:
            receipts.append(ClientResult(arrival.at))
            self._schedule_at(arrival.at, self._frontend.submit, f"{len(receipts)}", arrival, receipts[-1])
        self.unfinished_requests = len(receipts)
        self._tick()
        while self.unfinished_requests:
            self._run_next()
        until = self.now + TAIL_S
        while self._heap[0][0] < until:
            self._run_next()
        return receipts

    # ---------------------------------------------------------------- time
    def send(self, sender: m.Peer, send: SendMessage) -> None:
        """Something is said."""
        if (actor := self._actors.get(send.to)) is not None:
            self.schedule_after(self.hop_s, actor.step, MessageReceived(sender, send.message))

    def schedule_after(self, seconds: float, do: Callable[..., None], *given: Any) -> None:
        """Have something done after a while."""
        self._schedule_at(self.now + seconds, do, *given)

    def _schedule_at(self, when: float, do: Callable[..., None], *given: Any) -> None:
        self._event_count += 1
        heappush(self._heap, (when, self._event_count, do, given))

    def _run_next(self) -> None:
        self.now, _, do, given = heappop(self._heap)
        do(*given)

    def _tick(self) -> None:
        for actor in self._actors.values():
            actor.step(Tick())
        self.schedule_after(TICK_INTERVAL_S, self._tick)


class _SimConductor:
    """A conductor: its core."""

    def __init__(self, simulation: CapacitySimulation, core: ConductorCore) -> None:
        self._simulation = simulation
        self._core = core

    def step(self, event: MessageReceived | Tick) -> None:
        for send in self._core.step(self._simulation.now, event):
            self._simulation.send(CONDUCTOR, send)


class _SimWorker:
    """A worker: its core, and an engine that executes one command after the other."""

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
        """Execute what can be executed. No thread is woken for a short batch; one that is awake runs it."""
        while self._commands and not self._is_busy:
            report = self._engine.execute(self._commands.popleft())
            if isinstance(report, BatchFinished):
                self._is_busy = True
                hop_s = self._simulation.hop_s if is_awake or report.seconds >= INLINE_BATCH_LIMIT_S else 0.0
                self._simulation.schedule_after(report.seconds, self._batch_finished, report, hop_s)
            elif report is not None:
                self._simulation.schedule_after(self._simulation.hop_s, self.step, report)

    def _batch_finished(self, ran: BatchFinished, hop_s: float) -> None:
        self._is_busy = False
        self._simulation.schedule_after(hop_s, self.step, ran)
        self._execute_ready(is_awake=True)  # what is queued does not wait until the worker has heard of what has run


class _SimFrontend:
    """A front end: its core, and clients who take at once what they are given and have nothing more to say."""

    def __init__(self, simulation: CapacitySimulation, conductors: Mapping[str, m.Peer]) -> None:
        self._simulation = simulation
        # Nobody dies: nothing is made and compared again.
        self._core = core.FrontendCore(FRONT, conductors, lambda _: b"")
        self._clients: dict[str, tuple[Arrival, ClientResult]] = {}

    def submit(self, rid: str, arrival: Arrival, result: ClientResult) -> None:
        self._clients[rid] = (arrival, result)
        self.step(core.RequestOpened(m.Submit(rid, arrival.model, m.Value(arrival.request), slo=arrival.slo)))

    def step(self, event: core.Event) -> None:
        for action in self._core.step(self._simulation.now, event):
            if isinstance(action, SendMessage):
                self._simulation.send(FRONT, action)
            elif isinstance(action, core.Deliver):
                self._deliver(action)
            elif isinstance(action, core.AwaitingInput):
                self.step(core.InputSent(action.rid, None))
            else:
                self._end(action)

    def _deliver(self, event: core.Deliver) -> None:
        arrival, receipt = self._clients[event.rid]
        seconds = duration_of(event.kind, event.value, dict(event.clock), arrival.slo)
        receipt.chunks.append((self._simulation.now, seconds or 0.0))
        self.step(core.OutputsConsumed(event.rid, event.kind, event.index + 1))

    def _end(self, event: core.RequestEnded) -> None:
        _, receipt = self._clients.pop(event.rid)
        receipt.ended_at, receipt.status = self._simulation.now, str(event.end.status)
        if isinstance(event.end, m.RequestRejected):
            receipt.retry_after = event.end.retry_after_s
        self._simulation.unfinished_requests -= 1
