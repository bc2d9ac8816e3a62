"""A conductor's core: told what happened, it says what to send. No IO, no clock, no threads, no tensors.

It admits requests, drives their routes, has each walk begun on workers, and is then out of the way until the walk has
ended. When a worker dies, every request that needs it is tried again. How a request goes on is in `course`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import assert_never

from mstar.conductor import course
from mstar.conductor.requests import Request
from mstar.conductor.timeline import Timeline
from mstar.failpoints import hit
from mstar.plan.tables import Plans
from mstar.walk.model import Model
from mstar.wire import messages as m
from mstar.wire.steps import Received, Send, Tick

BEAT = 0.2
"""Seconds between two signs of life."""
SILENCE = 1.1
"""For so many seconds a process that lives is never silent: it beats in a thread of its own."""
ATTEMPTS = 1 << 40
"""How many attempts there can be under one conductor, at all requests; those of a later one are numbered higher."""
HELD_UP = 60.0
"""For so many seconds a worker may be silent while it computes: a library that is loaded, or a call that lets nobody
else run."""
STUCK = 120.0
"""A worker whose batch has run for so many seconds is given up."""


Event = Received | Tick


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is served: its route, its plans, and which of its walks must not be run twice."""

    model: Model
    plans: Plans
    once: frozenset[str]

    @classmethod
    def of(cls, model: Model, plans: Plans) -> Served:
        """A model with its plans."""
        components = model.components()
        ops = [components[key.component].ops()[key.op] for key in plans.keys]
        walks = plans.walks.items()
        return cls(model, plans, frozenset(name for name, plan in walks if any(ops[key].once for key, _ in plan.calls)))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a conductor takes on."""

    live: int = 1024
    """How many requests run at a time."""
    queue: int = 256
    """How many more may wait."""
    restarts: int = 20
    """How often a request is tried again."""
    unavailable: float = 30.0
    """For how many seconds one waits for a worker."""
    silence: float = SILENCE
    """A worker that was not heard of for so many seconds is given up."""


@dataclass(eq=False, slots=True)
class Worker:
    """A worker that is there."""

    peer: m.Peer
    heard: float
    """When there was a sign of its life."""
    spoke: float
    """When it spoke itself."""
    load: int = 0
    """How many walks have a seat there."""


class ConductorCore:
    """The state of one conductor."""

    def __init__(
        self,
        me: m.Peer,
        launcher: m.Peer,
        served: Mapping[str, Served],
        limits: Limits | None = None,
    ) -> None:
        self.me = me
        self.served = served
        self.limits = limits or Limits()
        self.requests: dict[str, Request] = {}
        self.workers: dict[str, Worker] = {}
        self.fronts: dict[m.Peer, None] = {}
        self.buried: dict[str, m.Peer] = {}
        """By name: the last life of a worker that everyone was told to forget."""
        self.attempts = count(me.incarnation * ATTEMPTS)
        """Numbers for attempts: no two are the same, not even when a request comes again after it has ended."""
        self.out: list[Send] = []
        """What is to be sent after this step."""
        self.timeline = Timeline()
        self.late = 0
        """How many messages spoke of what is over."""
        self._launcher = launcher
        self._expected = {name for one in served.values() for name in one.plans.workers}
        self._queue: deque[str] = deque()
        self._unreleased: dict[tuple[str, int], set[m.Peer]] = {}
        self._ended: deque[float] = deque(maxlen=32)
        self._is_ready = False
        self._is_draining = False
        self._is_drained = False
        self._beaten = float("-inf")

    def step(self, now: float, event: Event) -> list[Send]:
        """Take note of an event; what to send now, in order."""
        self.timeline.now = now
        match event:
            case Received():
                self._receive(now, event.sender, event.message)
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        self._admit(now)
        out, self.out = self.out, []
        return out

    def send(self, to: m.Peer, message: m.Message) -> None:
        """Have something sent."""
        self.out.append(Send(to, message))

    def stock(self) -> dict[str, int]:
        """What it holds, counted."""
        return {
            "requests": len(self.requests),
            "queue": len(self._queue),
            "unreleased": len(self._unreleased),
            "workers": len(self.workers),
        }

    # ---------------------------------------------------------------- messages
    def _receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        if self.is_alive(sender):
            worker = self.workers[sender.name]
            worker.heard = worker.spoke = now
        match message:
            case m.Done() | m.Failed() | m.Lost():
                self._hear(now, sender, message)
            case m.Released():
                self._released(message.rid, message.attempt, sender)
            case m.Submit():
                self._submit(now, sender, message)
            case m.Cancel():
                self._cancel(now, message.rid)
            case m.Hello():
                self._welcome(now, sender)
            case m.Gone():
                self._gone(now, message)
            case m.Drain():
                self._is_draining = True
            case _:
                _bear(self, now, sender, message)

    def _hear(self, now: float, sender: m.Peer, message: m.Done | m.Failed | m.Lost) -> None:
        request = self.requests.get(message.rid)
        if request is None or request.attempt != message.attempt or sender not in request.workers:
            self.late += 1
        elif isinstance(message, m.Done):
            course.arrive(self, now, request, sender, message)
        elif isinstance(message, m.Failed):
            course.finish(self, now, request, course.How("failed", message.error, message.text))
        else:
            course.restart(self, now, request, message.text)

    # ---------------------------------------------------------------- requests come and go
    def _submit(self, now: float, front: m.Peer, submit: m.Submit) -> None:
        hit("conductor.submit")
        _meet(self, front)
        if (request := self.requests.get(submit.rid)) is not None:
            if submit.after >= request.attempt:  # the client misses something of this attempt
                course.restart(self, now, request, "an emission was lost on its way", is_afresh=True)
            return
        if submit.model not in self.served:
            self.send(front, m.Refused(submit.rid, 404, f"no model is called {submit.model!r}"))
        elif submit.after < 0 and self._is_draining:
            self.send(front, m.Refused(submit.rid, 503, "the server is shutting down", 5.0))
        elif submit.after < 0 and len(self._queue) >= self.limits.queue and self.is_full:
            self.send(front, m.Refused(submit.rid, 429, "too many requests are waiting", self.retry_after(now)))
        else:
            self.requests[submit.rid] = Request(submit, front, now)
            self.timeline.queued(submit.rid)
            self._queue.append(submit.rid)

    def _cancel(self, now: float, rid: str) -> None:
        hit("conductor.cancel")
        if (request := self.requests.get(rid)) is not None:
            course.finish(self, now, request, course.How("cancelled"))

    @property
    def is_full(self) -> bool:
        """Whether no further request may begin now."""
        return len(self.requests) - len(self._queue) + len(self._unreleased) >= self.limits.live

    def retry_after(self, now: float) -> float:
        """When it is worth while to try again, by how fast requests have ended lately."""
        ended = self._ended
        each = (now - ended[0]) / len(ended) if ended else 1.0
        return min(30.0, max(0.1, each * len(self._queue)))

    def _admit(self, now: float) -> None:
        hit("conductor.admit")
        while self._queue and not self.is_full:
            if (request := self.requests.get(self._queue.popleft())) is not None:
                request.attempt = next(self.attempts)
                self.timeline.tried(request)
                course.begin(self, now, request)
        if self._is_draining and not self.requests and not self._unreleased and not self._is_drained:
            self._is_drained = True
            self.send(self._launcher, m.Drained())

    def ended(self, now: float, request: Request) -> None:
        """A request is over: it is forgotten, and its workers are told."""
        hit("conductor.ended")
        del self.requests[request.rid]
        if request.rid in self._queue:
            self._queue.remove(request.rid)
        self.timeline.over(request.rid)
        self._ended.append(now)
        self.abandon(request)

    def abandon(self, request: Request, *, keeps_states: bool = False) -> None:
        """Have workers drop an attempt. It counts as running until they say that nothing of it is left."""
        hit("conductor.abandon")
        peers = {peer for peer in request.workers if self.is_alive(peer)}
        for peer in sorted(peers, key=lambda peer: peer.name):
            self.send(peer, m.End(request.rid, request.attempt, keeps_states))
        if peers:
            self._unreleased[request.rid, request.attempt] = peers
        if not keeps_states:
            request.workers = set()

    def _released(self, rid: str, attempt: int, peer: m.Peer) -> None:
        hit("conductor.released")
        waiting = self._unreleased.get((rid, attempt))
        if waiting is not None:
            waiting.discard(peer)
            if not waiting:
                del self._unreleased[rid, attempt]

    # ---------------------------------------------------------------- workers come and go
    def is_alive(self, peer: m.Peer) -> bool:
        """Whether this life of a worker is there."""
        worker = self.workers.get(peer.name)
        return worker is not None and worker.peer == peer

    def _welcome(self, now: float, peer: m.Peer) -> None:
        """A worker, or a front end, has started."""
        hit("conductor.welcome")
        if peer.name not in self._expected:
            _meet(self, peer)
            return
        before = self.workers.get(peer.name)
        if before is not None:
            if before.peer.incarnation >= peer.incarnation:
                return
            self._lose(now, before.peer, ())
        if peer.incarnation:  # it has died before, perhaps under another conductor
            _bury(self, m.Peer(peer.name, peer.incarnation - 1))
        self.workers[peer.name] = Worker(peer, now, now)
        for dead in self.buried.values():
            self.send(peer, m.Forget(dead))
        if not self._is_ready and self._expected <= self.workers.keys():
            self._is_ready = True
            self.send(self._launcher, m.Ready())
        course.place_waiting(self)

    def _gone(self, now: float, news: m.Gone) -> None:
        if news.peer in self.fronts:
            del self.fronts[news.peer]
            for rid in [rid for rid, request in self.requests.items() if request.front == news.peer]:
                self._cancel(now, rid)
        _bury(self, news.peer)
        if self.is_alive(news.peer):
            self._lose(now, news.peer, news.suspects)
        else:
            course.suspect(self, now, news.peer, news.suspects)

    def _lose(self, now: float, peer: m.Peer, suspects: Sequence[m.Suspect]) -> None:
        """A worker is dead, or as good as dead: all that needs it begins anew elsewhere, or when it is back."""
        del self.workers[peer.name]
        for key, waiting in list(self._unreleased.items()):
            waiting.discard(peer)
            if not waiting:
                del self._unreleased[key]
        course.suspect(self, now, peer, suspects)
        for request in [one for one in self.requests.values() if one.needs(peer)]:
            course.restart(self, now, request, f"worker {peer} was lost")
        for request in self.requests.values():
            request.workers.discard(peer)

    def _tick(self, now: float) -> None:
        if now - self._beaten >= BEAT:
            self._beaten = now
            for worker in self.workers.values():
                self.send(worker.peer, m.Beat())
        for worker in list(self.workers.values()):
            if now - worker.heard > self.limits.silence:
                self.give_up(now, worker.peer, f"not heard of for {now - worker.heard:.1f} s")
        for request in list(self.requests.values()):
            if now > request.deadline:
                course.finish(self, now, request, course.How("deadline", "Deadline", "it took longer than it may"))
            elif request.tour is not None and not request.tour.seats:
                course.wait(self, now, request)

    def give_up(self, now: float, peer: m.Peer, why: str) -> None:
        """Have a worker killed, and go on as if it were."""
        self.send(self._launcher, m.Kill(peer, why))
        self._lose(now, peer, ())


def _bear(core: ConductorCore, now: float, sender: m.Peer, message: m.Message) -> None:
    """A worker computes: that it is silent is borne for a while, and longer if it says that a batch runs."""
    if isinstance(message, m.Busy) and core.is_alive(message.peer):
        worker = core.workers[message.peer.name]
        if now - worker.spoke <= HELD_UP:
            worker.heard = now
    elif isinstance(message, m.Beat) and message.busy > STUCK and core.is_alive(sender):
        core.give_up(now, sender, f"its batch has run for {message.busy:.0f} s")


def _bury(core: ConductorCore, peer: m.Peer) -> None:
    """Have nobody keep anything for a life that is over: it has ended, and is not only given up."""
    last = core.buried.get(peer.name)
    if last is None or last.incarnation < peer.incarnation:
        core.buried[peer.name] = peer
        for other in (*(worker.peer for worker in core.workers.values()), *core.fronts):
            if other != peer:
                core.send(other, m.Forget(peer))


def _meet(core: ConductorCore, front: m.Peer) -> None:
    """A front end is there; perhaps it still keeps something for lives that are over."""
    if front not in core.fronts:
        core.fronts[front] = None
        for dead in core.buried.values():
            core.send(front, m.Forget(dead))
