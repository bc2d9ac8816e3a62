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

from mstar.conductor.core import ConductorCore, Limits, Served
from mstar.config import Options
from mstar.plan.deployment import Deployed
from mstar.server import streams
from mstar.wire import messages as m
from mstar.wire.node import TICK
from mstar.wire.pace import Pace, seconds_of
from mstar.wire.steps import Received, Send, Tick
from mstar.worker.batches import Limits as WorkerLimits
from mstar.worker.commands import Command, Event, Exported, Ran
from mstar.worker.core import WorkerCore
from mstar.worker.engine_room import AT_ONCE
from mstar.worker.order import Order

HOP = 0.0005
"""Seconds from one process to another, and from an engine's thread to its worker."""
START = -0.5
"""When processes start: who comes at 0 finds them there."""
AFTER = 1.0
"""For so many seconds after the last request time goes on, so that everybody can let go of it."""
LAUNCHER, CONDUCTOR, FRONT = m.Peer("launcher", 0), m.Peer("conductor", 0), m.Peer("front", 0)


class Arrival(Protocol):
    """A request that will come: when, to which model, and what its client is promised."""

    @property
    def at(self) -> float: ...  # noqa: D102 - said above
    @property
    def ask(self) -> Any: ...  # noqa: D102
    @property
    def model(self) -> str: ...  # noqa: D102
    @property
    def pace(self) -> Pace: ...  # noqa: D102


@dataclass(eq=False, slots=True)
class Receipt:
    """What one client got: when, and how many seconds of it."""

    asked: float
    chunks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    ended: float = 0.0
    status: str = ""
    """ok, or what else it came to; of one who was refused, the status in HTTP."""
    retry_after: float = 0.0


class Engine(Protocol):
    """What executes the commands of one worker, in order. Only a batch takes time; what came of it says how much."""

    def execute(self, command: Command) -> Ran | Exported | None:
        """What came of it."""
        ...


class Rehearsal:
    """One run of a deployment. `engine` makes the engine of a worker, `order` is another rule for the next batch."""

    def __init__(
        self,
        deployed: Mapping[str, Deployed],
        engine: Callable[[], Engine],
        *,
        options: Options | None = None,
        order: Order | None = None,
        hop_s: float = HOP,
    ) -> None:
        options = options or Options()
        self.now = START
        self.left = 0
        """How many requests have not ended."""
        self.hop_s = hop_s
        self._count = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        served = {name: Served.of(one.model, one.plans) for name, one in deployed.items()}
        limits = Limits(live=options.max_live, queue=options.queue_bound, silence=inf, is_fixed=True)
        self._front = _Front(self, dict.fromkeys(served, CONDUCTOR))
        self._actors: dict[m.Peer, _Conductor | _Worker | _Front] = {
            CONDUCTOR: _Conductor(self, ConductorCore(CONDUCTOR, LAUNCHER, served, limits)),
            FRONT: self._front,
        }
        plans = {name: one.plans for name, one in deployed.items()}
        single = {name: one.alone() for name, one in deployed.items()}
        sharing = WorkerLimits(options.max_batch, options.window, order, single)
        for name in dict.fromkeys(name for one in plans.values() for name in one.workers):
            core = WorkerCore(m.Peer(name, 0), CONDUCTOR, plans, (), sharing)
            self._actors[core.me] = _Worker(self, core, engine())
            self.send(core.me, Send(CONDUCTOR, m.Hello()))

    def play(self, arrivals: Iterable[Arrival]) -> list[Receipt]:
        """Have requests come at their times, from 0 on; what each got, when all have ended. It is done once."""
        receipts: list[Receipt] = []
        for arrival in arrivals:
            receipts.append(Receipt(arrival.at))
            self._at(arrival.at, self._front.open, f"{len(receipts)}", arrival, receipts[-1])
        self.left = len(receipts)
        self._tick()
        while self.left:
            self._next()
        until = self.now + AFTER
        while self._heap[0][0] < until:
            self._next()
        return receipts

    # ---------------------------------------------------------------- time
    def send(self, sender: m.Peer, send: Send) -> None:
        """Something is said."""
        if (actor := self._actors.get(send.to)) is not None:
            self.after(self.hop_s, actor.step, Received(sender, send.message))

    def after(self, seconds: float, do: Callable[..., None], *given: Any) -> None:
        """Have something done after a while."""
        self._at(self.now + seconds, do, *given)

    def _at(self, when: float, do: Callable[..., None], *given: Any) -> None:
        self._count += 1
        heappush(self._heap, (when, self._count, do, given))

    def _next(self) -> None:
        self.now, _, do, given = heappop(self._heap)
        do(*given)

    def _tick(self) -> None:
        for actor in self._actors.values():
            actor.step(Tick())
        self.after(TICK, self._tick)


class _Conductor:
    """A conductor: its core."""

    def __init__(self, rehearsal: Rehearsal, core: ConductorCore) -> None:
        self._rehearsal = rehearsal
        self._core = core

    def step(self, event: Received | Tick) -> None:
        for send in self._core.step(self._rehearsal.now, event):
            self._rehearsal.send(CONDUCTOR, send)


class _Worker:
    """A worker: its core, and an engine that executes one command after the other."""

    def __init__(self, rehearsal: Rehearsal, core: WorkerCore, engine: Engine) -> None:
        self._rehearsal = rehearsal
        self._core = core
        self._engine = engine
        self._commands: deque[Command] = deque()
        self._is_busy = False

    def step(self, event: Event) -> None:
        for action in self._core.step(self._rehearsal.now, event):
            if isinstance(action, Send):
                self._rehearsal.send(self._core.me, action)
            else:
                self._commands.append(action)
        self._go_on(is_awake=False)

    def _go_on(self, *, is_awake: bool) -> None:
        """Execute what can be executed. No thread is woken for a short batch; one that is awake runs it."""
        while self._commands and not self._is_busy:
            report = self._engine.execute(self._commands.popleft())
            if isinstance(report, Ran):
                self._is_busy = True
                hop_s = self._rehearsal.hop_s if is_awake or report.seconds >= AT_ONCE else 0.0
                self._rehearsal.after(report.seconds, self._ran, report, hop_s)
            elif report is not None:
                self._rehearsal.after(self._rehearsal.hop_s, self.step, report)

    def _ran(self, ran: Ran, hop_s: float) -> None:
        self._is_busy = False
        self._rehearsal.after(hop_s, self.step, ran)
        self._go_on(is_awake=True)  # what is queued does not wait until the worker has heard of what has run


class _Front:
    """A front end: its core, and clients who take at once what they are given and have nothing more to say."""

    def __init__(self, rehearsal: Rehearsal, conductors: Mapping[str, m.Peer]) -> None:
        self._rehearsal = rehearsal
        # Nobody dies: nothing is made and compared again.
        self._core = streams.FrontCore(FRONT, conductors, lambda _: b"")
        self._clients: dict[str, tuple[Arrival, Receipt]] = {}

    def open(self, rid: str, arrival: Arrival, receipt: Receipt) -> None:
        self._clients[rid] = (arrival, receipt)
        self.step(streams.Opened(m.Submit(rid, arrival.model, m.Value(arrival.ask), pace=arrival.pace)))

    def step(self, event: streams.Event) -> None:
        for action in self._core.step(self._rehearsal.now, event):
            if isinstance(action, Send):
                self._rehearsal.send(FRONT, action)
            elif isinstance(action, streams.Deliver):
                self._deliver(action)
            elif isinstance(action, streams.Waits):
                self.step(streams.Told(action.rid, None))
            else:
                self._end(action)

    def _deliver(self, news: streams.Deliver) -> None:
        arrival, receipt = self._clients[news.rid]
        seconds = seconds_of(news.kind, news.value, dict(news.clock), arrival.pace)
        receipt.chunks.append((self._rehearsal.now, seconds or 0.0))
        self.step(streams.Took(news.rid, news.kind, news.index + 1))

    def _end(self, news: streams.Ended) -> None:
        _, receipt = self._clients.pop(news.rid)
        receipt.ended, receipt.status = self._rehearsal.now, str(news.end.status)
        if isinstance(news.end, m.Refused):
            receipt.retry_after = news.end.retry_after
        self._rehearsal.left -= 1
