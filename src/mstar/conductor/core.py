"""A conductor's core: told what happened, it says what to send. No IO, no clock, no threads, no tensors.

It admits requests, drives their routes, has each walk begun on workers, and is then out of the way until the walk has
ended. When a worker dies, every request that needs it is tried again. How a request goes on is in `course`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import assert_never

from mstar.conductor import course
from mstar.conductor.admission import Admission
from mstar.conductor.queue import Queue
from mstar.conductor.requests import Request
from mstar.conductor.rests import stand
from mstar.conductor.scaling import Scaling
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
    """A model that is served: its route, its plans, which of its walks must not be run twice, and which emit."""

    model: Model
    plans: Plans
    once: frozenset[str]
    emits: frozenset[str]

    @classmethod
    def of(cls, model: Model, plans: Plans) -> Served:
        """A model with its plans."""
        components = model.components()
        ops = [components[key.component].ops()[key.op] for key in plans.keys]
        walks = plans.walks.items()
        once = frozenset(name for name, plan in walks if any(ops[key].once for key, _ in plan.calls))
        return cls(model, plans, once, frozenset(name for name, plan in walks if plan.emits))


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
    calm: float = 5.0
    """For so many seconds fewer workers must do before one leaves: crowds come in waves."""
    grace: float = 30.0
    """For so many seconds walks may go on at a worker that leaves: most end by then, and need not be run again."""
    is_fixed: bool = False
    """Whether workers can be neither started nor ended."""


@dataclass(eq=False, slots=True)
class Worker:
    """A worker that is there."""

    peer: m.Peer
    heard: float
    """When there was a sign of its life."""
    spoke: float
    """When it spoke itself."""
    edition: int = 0
    """Which edition of the weights it has loaded."""
    leaves: float | None = None
    """Since when it is to leave, if it is."""
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
        self.first_attempt = me.incarnation * ATTEMPTS
        """Attempts with smaller numbers were made under conductors before this one."""
        self.attempts = count(self.first_attempt)
        """Numbers for attempts: no two are the same, not even when a request comes again after it has ended."""
        self.out: list[Send] = []
        """What is to be sent after this step."""
        self.timeline = Timeline()
        self.late = 0
        """How many messages spoke of what is over."""
        self._launcher = launcher
        self._expected = {name for one in served.values() for name in one.plans.workers}
        self.scaling = Scaling(launcher, served)
        self._first = {name for crew in self.scaling.crews for name in crew.workers[: crew.least]}
        self.admission = Admission(served, self.scaling.asleep)
        self._queue = Queue()
        self._unreleased: dict[tuple[str, int], set[m.Peer]] = {}
        self._is_ready = False
        self.is_draining = False
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
        } | self.scaling.stock(self)

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
            case m.Say() if message.rid in self.requests:
                course.hear(self, now, self.requests[message.rid], message)
            case m.Cancel():
                _cancel(self, now, message.rid)
            case m.Hello():
                self._welcome(now, sender, message.edition)
            case m.Gone():
                self._gone(now, message)
            case _:
                _heed(self, now, sender, message)

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
        elif submit.after < 0 and self.is_draining:
            self.send(front, m.Refused(submit.rid, 503, "the server is shutting down", 5.0))
        elif submit.after < 0 and len(self._queue) >= self.limits.queue and self._is_kept_waiting(submit):
            wait = self.admission.wait_s(now, len(self._queue))
            self.send(front, m.Refused(submit.rid, 429, "too many requests are waiting", wait))
        elif submit.after < 0 and (late := self.admission.too_late(now, submit, len(self._queue) + self.is_full)):
            why = f"its first emission would come {late:.1f} s later than it is wanted"
            self.send(front, m.Refused(submit.rid, 429, why, late))
        else:
            request = self.requests[submit.rid] = Request(submit, front, now)
            if submit.model in self.scaling.rests.models:
                self.scaling.rests.wake(self, submit.model)
            request.edition = self.scaling.recent.get(submit.rid)
            request.forecast = self.admission.forecast(now, submit, len(self._queue) + self.is_full)
            self.timeline.queued(submit.rid)
            self._queue.add(submit)
            for say in submit.said:
                course.hear(self, now, request, say)

    def _is_kept_waiting(self, submit: m.Submit) -> bool:
        """Whether a request that comes now would not begin at once."""
        return self.is_full or self._queue.is_behind(submit) or not self.admission.has_room(submit)

    @property
    def is_full(self) -> bool:
        """Whether no further request may begin now."""
        return len(self.requests) - len(self._queue) + len(self._unreleased) >= self.limits.live

    def _admit(self, now: float) -> None:
        hit("conductor.admit")
        while self._queue and not self.is_full:
            heads = (self.requests[rid] for rid in self._queue.heads())
            request = next((one for one in heads if one.submit.after >= 0 or self.admission.has_room(one.submit)), None)
            if request is None:
                break
            self._queue.take(request.rid)
            self.admission.took(request.submit)
            request.attempt = next(self.attempts)
            self.timeline.tried(request)
            course.begin(self, now, request)
        if self.is_draining and not self.requests and not self._unreleased and not self._is_drained:
            self._is_drained = True
            self.send(self._launcher, m.Drained())

    def ended(self, now: float, request: Request) -> None:
        """A request is over: it is forgotten, and its workers are told."""
        hit("conductor.ended")
        del self.requests[request.rid]
        self.scaling.ended(request)
        if request.rid in self._queue:
            self._queue.remove(request.rid)
        else:
            self.admission.ended(now, request.rid)
        self.timeline.over(request.rid)
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

    def _welcome(self, now: float, peer: m.Peer, edition: int) -> None:
        """A worker, or a front end, has started."""
        hit("conductor.welcome")
        if peer.name not in self._expected:
            _meet(self, peer)
            return
        before = self.workers.get(peer.name)
        if self.scaling.retired.get(peer.name) == peer:
            return
        if before is not None:
            if before.peer.incarnation >= peer.incarnation:
                return
            self.lose(now, before.peer, ())
        if peer.incarnation:  # it has died before, perhaps under another conductor
            _bury(self, m.Peer(peer.name, peer.incarnation - 1))
        worker = self.workers[peer.name] = Worker(peer, now, now, edition)
        self.scaling.came(self, now, worker)
        for dead in self.buried.values():
            self.send(peer, m.Forget(dead))
        self._check_ready()
        course.place_waiting(self)

    def _check_ready(self) -> None:
        """Say so when all are there that run from the start."""
        if not self._is_ready and self._first <= self.workers.keys():
            self._is_ready = True
            self.send(self._launcher, m.Ready())

    def _gone(self, now: float, news: m.Gone) -> None:
        if news.peer in self.fronts:
            del self.fronts[news.peer]
            for rid in [rid for rid, request in self.requests.items() if request.front == news.peer]:
                _cancel(self, now, rid)
        _bury(self, news.peer)
        was_dismissed = self.scaling.gone(news.peer)
        if self.is_alive(news.peer):
            self.lose(now, news.peer, news.suspects)
        elif not was_dismissed:  # else it was ended while it computed, which is nobody's fault
            course.suspect(self, now, news.peer, news.suspects)

    def lose(self, now: float, peer: m.Peer, suspects: Sequence[m.Suspect], why: str = "") -> None:
        """A worker is dead, or as good as dead: all that needs it begins anew elsewhere, or when it is back."""
        del self.workers[peer.name]
        self.admission.lost(peer.name)
        self.scaling.lost(self, now, peer)
        for key, waiting in list(self._unreleased.items()):
            waiting.discard(peer)
            if not waiting:
                del self._unreleased[key]
        course.suspect(self, now, peer, suspects)
        for request in [one for one in self.requests.values() if one.needs(peer)]:
            course.restart(self, now, request, why or f"worker {peer} was lost")
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
            elif request.rid in self._queue and request.submit.after < 0:
                _turn_away(self, now, request)
        self._check_ready()
        self.scaling.step(self, now)

    def give_up(self, now: float, peer: m.Peer, why: str) -> None:
        """Have a worker killed, and go on as if it were."""
        self.send(self._launcher, m.Kill(peer, why))
        self.lose(now, peer, ())


def _cancel(core: ConductorCore, now: float, rid: str) -> None:
    hit("conductor.cancel")
    if (request := core.requests.get(rid)) is not None:
        course.finish(core, now, request, course.How("cancelled"))


def _turn_away(core: ConductorCore, now: float, request: Request) -> None:
    """A request that waits is refused once what it was promised cannot be kept: nothing of it has run."""
    wanted = request.submit.pace.first_s
    if wanted is not None and now - request.asked > wanted:
        why = "there was no room for it in the time in which it wanted its first emission"
        core.send(request.front, m.Refused(request.rid, 429, why, core.admission.wait_s(now, core.stock()["queue"])))
        core.ended(now, request)


def _heed(core: ConductorCore, now: float, sender: m.Peer, message: m.Message) -> None:
    """What an operator wants; or a worker computes: that it is silent is borne for a while, a batch without end not."""
    if isinstance(message, m.Drain):
        core.is_draining = True
        course.hear_no_more(core, now)
    elif isinstance(message, m.Renew):
        core.scaling.renew(message.edition)
    elif isinstance(message, m.Rest | m.Wake | m.TakeStanding):
        stand(core, sender, message)
    elif isinstance(message, m.Busy) and core.is_alive(message.peer):
        worker = core.workers[message.peer.name]
        if now - worker.spoke <= HELD_UP:
            worker.heard = now
    elif isinstance(message, m.Beat) and core.is_alive(sender):
        if message.load is not None:
            core.admission.heard(sender.name, message.load)
        if message.busy > STUCK:
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
