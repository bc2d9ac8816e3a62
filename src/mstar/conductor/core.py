"""A conductor's core: told what happened, it says what to send. No IO, no clock, no threads, no tensors.

It admits requests, drives their routes, has each walk begun on workers, and is then out of the way until the walk has
ended. When a worker dies, every request that needs it is tried again. How a request goes on is in `course`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import assert_never

from mstar.conductor import request_lifecycle
from mstar.conductor.admission import Admission
from mstar.conductor.fair_queue import FairQueue
from mstar.conductor.requests import Request
from mstar.conductor.scaling.autoscaler import Autoscaler
from mstar.conductor.scaling.model_loading import on_model_command
from mstar.conductor.spans import RequestSpans
from mstar.failpoints import hit
from mstar.plan.tables import Plans
from mstar.walk.model import Model
from mstar.wire import messages as m
from mstar.wire.message import MessageReceived, SendMessage, Tick

HEARTBEAT_INTERVAL_S = 0.2
"""Seconds between two signs of life."""
HEARTBEAT_TIMEOUT_S = 1.1
"""For so many seconds a process that lives is never silent: it beats in a thread of its own."""
ATTEMPTS_PER_INCARNATION = 1 << 40
"""How many attempts there can be under one conductor, at all requests; those of a later one are numbered higher."""
COMPUTE_GRACE_S = 60.0
"""For so many seconds a worker may be silent while it computes: a library that is loaded, or a call that lets nobody
else run."""
BATCH_TIMEOUT_S = 120.0
"""A worker whose batch has run for so many seconds is given up."""


Event = MessageReceived | Tick


@dataclass(frozen=True, slots=True)
class ConductorModel:
    """A model that is served: its route, its plans, which of its walks must not be run twice, and which emit."""

    model: Model
    plans: Plans
    non_idempotent_walks: frozenset[str]
    emitting_walks: frozenset[str]

    @classmethod
    def from_plans(cls, model: Model, plans: Plans) -> ConductorModel:
        """A model with its plans."""
        components = model.components()
        ops = [components[key.component].ops()[key.op] for key in plans.keys]
        walks = plans.walks.items()
        once = frozenset(name for name, plan in walks if any(not ops[key].idempotent for key, _ in plan.calls))
        return cls(model, plans, once, frozenset(name for name, plan in walks if plan.emits))


@dataclass(frozen=True, slots=True)
class ConductorLimits:
    """What a conductor takes on."""

    max_running_requests: int = 1024
    """How many requests run at a time."""
    max_queued_requests: int = 256
    """How many more may wait."""
    max_retries: int = 20
    """How often a request is tried again."""
    worker_wait_s: float = 30.0
    """For how many seconds one waits for a worker."""
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    """A worker that was not heard of for so many seconds is given up."""
    scale_down_delay_s: float = 5.0
    """For so many seconds fewer workers must do before one leaves: crowds come in waves."""
    drain_timeout_s: float = 30.0
    """For so many seconds walks may go on at a worker that leaves: most end by then, and need not be run again."""
    has_fixed_workers: bool = False
    """Whether workers can be neither started nor ended."""


@dataclass(eq=False, slots=True)
class Worker:
    """A worker that is there."""

    peer: m.Peer
    last_alive_at: float
    """When there was a sign of its life."""
    last_message_at: float
    """When it spoke itself."""
    weights_version: int = 0
    """Which edition of the weights it has loaded."""
    draining_since: float | None = None
    """Since when it is to leave, if it is."""
    running_walks: int = 0
    """How many walks have a seat there."""


class ConductorCore:
    """The state of one conductor."""

    def __init__(
        self,
        peer: m.Peer,
        launcher: m.Peer,
        models: Mapping[str, ConductorModel],
        limits: ConductorLimits | None = None,
    ) -> None:
        self.peer = peer
        self.models = models
        self.limits = limits or ConductorLimits()
        self.requests: dict[str, Request] = {}
        self.workers: dict[str, Worker] = {}
        self.frontends: dict[m.Peer, None] = {}
        self.dead_peers: dict[str, m.Peer] = {}
        """By name: the last life of a worker that everyone was told to forget."""
        self.first_attempt = peer.incarnation * ATTEMPTS_PER_INCARNATION
        """Attempts with smaller numbers were made under conductors before this one."""
        self.attempts = count(self.first_attempt)
        """Numbers for attempts: no two are the same, not even when a request comes again after it has ended."""
        self.outbox: list[SendMessage] = []
        """What is to be sent after this step."""
        self.request_spans = RequestSpans()
        self.stale_messages = 0
        """How many messages spoke of what is over."""
        self._launcher = launcher
        self._known_workers = {name for one in models.values() for name in one.plans.workers}
        self.autoscaler = Autoscaler(launcher, models)
        self._initial_workers = {name for crew in self.autoscaler.groups for name in crew.workers[: crew.min_replicas]}
        self.admission = Admission(models, self.autoscaler.inactive)
        self._queue = FairQueue()
        self._unreleased: dict[tuple[str, int], set[m.Peer]] = {}
        self._is_ready = False
        self.is_draining = False
        self._is_drained = False
        self._last_heartbeat_at = float("-inf")

    def step(self, now: float, event: Event) -> list[SendMessage]:
        """Take note of an event; what to send now, in order."""
        self.request_spans.now = now
        match event:
            case MessageReceived():
                self._receive(now, event.sender, event.message)
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        self._admit(now)
        out, self.outbox = self.outbox, []
        return out

    def send(self, to: m.Peer, message: m.Message) -> None:
        """Have something sent."""
        self.outbox.append(SendMessage(to, message))

    def stats(self) -> dict[str, int]:
        """What it holds, counted."""
        return {
            "requests": len(self.requests),
            "queue": len(self._queue),
            "unreleased": len(self._unreleased),
            "workers": len(self.workers),
        } | self.autoscaler.stats(self)

    # ---------------------------------------------------------------- messages
    def _receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        if self.is_alive(sender):
            worker = self.workers[sender.name]
            worker.last_alive_at = worker.last_message_at = now
        match message:
            case m.SeatDone() | m.AttemptFailed() | m.RetryNeeded():
                self._on_walk_report(now, sender, message)
            case m.AttemptReleased():
                self._on_released(message.rid, message.attempt, sender)
            case m.Submit():
                self._submit(now, sender, message)
            case m.ClientInput() if message.rid in self.requests:
                request_lifecycle.on_client_input(self, now, self.requests[message.rid], message)
            case m.Cancel():
                _cancel(self, now, message.rid)
            case m.Register():
                self._register(now, sender, message.weights_version)
            case m.ProcessExited():
                self._on_process_exited(now, message)
            case _:
                _on_control(self, now, sender, message)

    def _on_walk_report(
        self, now: float, sender: m.Peer, message: m.SeatDone | m.AttemptFailed | m.RetryNeeded
    ) -> None:
        request = self.requests.get(message.rid)
        if request is None or request.attempt != message.attempt or sender not in request.workers:
            self.stale_messages += 1
        elif isinstance(message, m.SeatDone):
            request_lifecycle.on_seat_done(self, now, request, sender, message)
        elif isinstance(message, m.AttemptFailed):
            request_lifecycle.finish(
                self, now, request, request_lifecycle.FinishStatus("failed", message.error_type, message.error_message)
            )
        else:
            request_lifecycle.retry(self, now, request, message.reason)

    # ---------------------------------------------------------------- requests come and go
    def _submit(self, now: float, frontend: m.Peer, submit: m.Submit) -> None:
        hit("conductor.submit")
        _register_frontend(self, frontend)
        if (request := self.requests.get(submit.rid)) is not None:
            if submit.last_seen_attempt >= request.attempt:  # the client misses something of this attempt
                request_lifecycle.retry(self, now, request, "an emission was lost on its way", from_scratch=True)
            return
        if submit.model not in self.models:
            self.send(frontend, m.RequestRejected(submit.rid, 404, f"no model is called {submit.model!r}"))
        elif submit.last_seen_attempt < 0 and self.is_draining:
            self.send(frontend, m.RequestRejected(submit.rid, 503, "the server is shutting down", 5.0))
        elif (
            submit.last_seen_attempt < 0
            and len(self._queue) >= self.limits.max_queued_requests
            and self._would_wait(submit)
        ):
            wait = self.admission.estimate_wait_s(now, len(self._queue))
            self.send(frontend, m.RequestRejected(submit.rid, 429, "too many requests are waiting", wait))
        elif submit.last_seen_attempt < 0 and (
            late := self.admission.ttft_overrun_s(now, submit, len(self._queue) + self.is_full)
        ):
            why = f"its first emission would come {late:.1f} s later than it is wanted"
            self.send(frontend, m.RequestRejected(submit.rid, 429, why, late))
        else:
            request = self.requests[submit.rid] = Request(submit, frontend, now)
            if submit.model in self.autoscaler.model_loading.unloaded:
                self.autoscaler.model_loading.load(self, submit.model)
            request.weights_version = self.autoscaler.recent_versions.get(submit.rid)
            request.predicted_ttft_s = self.admission.predict_ttft_s(now, submit, len(self._queue) + self.is_full)
            self.request_spans.on_queued(submit.rid)
            self._queue.add(submit)
            for say in submit.inputs:
                request_lifecycle.on_client_input(self, now, request, say)

    def _would_wait(self, submit: m.Submit) -> bool:
        """Whether a request that comes now would not begin at once."""
        return self.is_full or self._queue.is_flow_waiting(submit) or not self.admission.has_room(submit)

    @property
    def is_full(self) -> bool:
        """Whether no further request may begin now."""
        return len(self.requests) - len(self._queue) + len(self._unreleased) >= self.limits.max_running_requests

    def _admit(self, now: float) -> None:
        hit("conductor.admit")
        while self._queue and not self.is_full:
            heads = (self.requests[rid] for rid in self._queue.heads())
            request = next(
                (one for one in heads if one.submit.last_seen_attempt >= 0 or self.admission.has_room(one.submit)), None
            )
            if request is None:
                break
            self._queue.take(request.rid)
            self.admission.on_admitted(request.submit)
            request.attempt = next(self.attempts)
            self.request_spans.on_attempt(request)
            request_lifecycle.start_route(self, now, request)
        if self.is_draining and not self.requests and not self._unreleased and not self._is_drained:
            self._is_drained = True
            self.send(self._launcher, m.Drained())

    def remove_request(self, now: float, request: Request) -> None:
        """A request is over: it is forgotten, and its workers are told."""
        hit("conductor.remove_request")
        del self.requests[request.rid]
        self.autoscaler.on_request_finished(request)
        if request.rid in self._queue:
            self._queue.remove(request.rid)
        else:
            self.admission.on_finished(now, request.rid)
        self.request_spans.on_finished(request.rid)
        self.release_attempt(request)

    def release_attempt(self, request: Request, *, keeps_states: bool = False) -> None:
        """Have workers drop an attempt. It counts as running until they say that nothing of it is left."""
        hit("conductor.release_attempt")
        peers = {peer for peer in request.workers if self.is_alive(peer)}
        for peer in sorted(peers, key=lambda peer: peer.name):
            self.send(peer, m.ReleaseAttempt(request.rid, request.attempt, keeps_states))
        if peers:
            self._unreleased[request.rid, request.attempt] = peers
        if not keeps_states:
            request.workers = set()

    def _on_released(self, rid: str, attempt: int, peer: m.Peer) -> None:
        hit("conductor.on_released")
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

    def _register(self, now: float, peer: m.Peer, weights_version: int) -> None:
        """A worker, or a front end, has started."""
        hit("conductor.register")
        if peer.name not in self._known_workers:
            _register_frontend(self, peer)
            return
        before = self.workers.get(peer.name)
        if self.autoscaler.stopping.get(peer.name) == peer:
            return
        if before is not None:
            if before.peer.incarnation >= peer.incarnation:
                return
            self.on_worker_lost(now, before.peer, ())
        if peer.incarnation:  # it has died before, perhaps under another conductor
            _mark_dead(self, m.Peer(peer.name, peer.incarnation - 1))
        worker = self.workers[peer.name] = Worker(peer, now, now, weights_version)
        self.autoscaler.on_worker_started(self, now, worker)
        for dead in self.dead_peers.values():
            self.send(peer, m.PeerDead(dead))
        self._check_ready()
        request_lifecycle.place_waiting(self)

    def _check_ready(self) -> None:
        """Say so when all are there that run from the start."""
        if not self._is_ready and self._initial_workers <= self.workers.keys():
            self._is_ready = True
            self.send(self._launcher, m.Ready())

    def _on_process_exited(self, now: float, exited: m.ProcessExited) -> None:
        if exited.peer in self.frontends:
            del self.frontends[exited.peer]
            for rid in [rid for rid, request in self.requests.items() if request.frontend == exited.peer]:
                _cancel(self, now, rid)
        _mark_dead(self, exited.peer)
        was_dismissed = self.autoscaler.on_process_exited(exited.peer)
        if self.is_alive(exited.peer):
            self.on_worker_lost(now, exited.peer, exited.suspects)
        elif not was_dismissed:  # else it was ended while it computed, which is nobody's fault
            request_lifecycle.isolate_suspects(self, now, exited.peer, exited.suspects)

    def on_worker_lost(self, now: float, peer: m.Peer, suspects: Sequence[m.Suspect], reason: str = "") -> None:
        """A worker is dead, or as good as dead: all that needs it begins anew elsewhere, or when it is back."""
        del self.workers[peer.name]
        self.admission.remove_worker(peer.name)
        self.autoscaler.on_worker_lost(self, now, peer)
        for key, waiting in list(self._unreleased.items()):
            waiting.discard(peer)
            if not waiting:
                del self._unreleased[key]
        request_lifecycle.isolate_suspects(self, now, peer, suspects)
        for request in [one for one in self.requests.values() if one.needs(peer)]:
            request_lifecycle.retry(self, now, request, reason or f"worker {peer} was lost")
        for request in self.requests.values():
            request.workers.discard(peer)

    def _tick(self, now: float) -> None:
        if now - self._last_heartbeat_at >= HEARTBEAT_INTERVAL_S:
            self._last_heartbeat_at = now
            for worker in self.workers.values():
                self.send(worker.peer, m.Heartbeat())
        for worker in list(self.workers.values()):
            if now - worker.last_alive_at > self.limits.heartbeat_timeout_s:
                self.kill_worker(now, worker.peer, f"not heard of for {now - worker.last_alive_at:.1f} s")
        for request in list(self.requests.values()):
            if now > request.deadline:
                request_lifecycle.finish(
                    self,
                    now,
                    request,
                    request_lifecycle.FinishStatus("deadline", "Deadline", "it took longer than it may"),
                )
            elif request.walk_run is not None and not request.walk_run.seats:
                request_lifecycle.check_worker_wait(self, now, request)
            elif request.rid in self._queue and request.submit.last_seen_attempt < 0:
                _reject_expired(self, now, request)
        self._check_ready()
        self.autoscaler.step(self, now)

    def kill_worker(self, now: float, peer: m.Peer, reason: str) -> None:
        """Have a worker killed, and go on as if it were."""
        self.send(self._launcher, m.Kill(peer, reason))
        self.on_worker_lost(now, peer, ())


def _cancel(core: ConductorCore, now: float, rid: str) -> None:
    hit("conductor.cancel")
    if (request := core.requests.get(rid)) is not None:
        request_lifecycle.finish(core, now, request, request_lifecycle.FinishStatus("cancelled"))


def _reject_expired(core: ConductorCore, now: float, request: Request) -> None:
    """A request that waits is refused once what it was promised cannot be kept: nothing of it has run."""
    wanted = request.submit.slo.ttft_s
    if wanted is not None and now - request.last_input_at > wanted:
        why = "there was no room for it in the time in which it wanted its first emission"
        core.send(
            request.frontend,
            m.RequestRejected(request.rid, 429, why, core.admission.estimate_wait_s(now, core.stats()["queue"])),
        )
        core.remove_request(now, request)


def _on_control(core: ConductorCore, now: float, sender: m.Peer, message: m.Message) -> None:
    """What an operator wants; or a worker computes: that it is silent is borne for a while, a batch without end not."""
    if isinstance(message, m.Drain):
        core.is_draining = True
        request_lifecycle.close_inputs(core, now)
    elif isinstance(message, m.RollWeights):
        core.autoscaler.start_rollout(message.weights_version)
    elif isinstance(message, m.UnloadModel | m.LoadModel | m.ModelStatusQuery):
        on_model_command(core, sender, message)
    elif isinstance(message, m.StillComputing) and core.is_alive(message.peer):
        worker = core.workers[message.peer.name]
        if now - worker.last_message_at <= COMPUTE_GRACE_S:
            worker.last_alive_at = now
    elif isinstance(message, m.Heartbeat) and core.is_alive(sender):
        if message.load is not None:
            core.admission.update_load(sender.name, message.load)
        if message.batch_running_s > BATCH_TIMEOUT_S:
            core.kill_worker(now, sender, f"its batch has run for {message.batch_running_s:.0f} s")


def _mark_dead(core: ConductorCore, peer: m.Peer) -> None:
    """Have nobody keep anything for a life that is over: it has ended, and is not only given up."""
    last = core.dead_peers.get(peer.name)
    if last is None or last.incarnation < peer.incarnation:
        core.dead_peers[peer.name] = peer
        for other in (*(worker.peer for worker in core.workers.values()), *core.frontends):
            if other != peer:
                core.send(other, m.PeerDead(peer))


def _register_frontend(core: ConductorCore, frontend: m.Peer) -> None:
    """A front end is there; perhaps it still keeps something for lives that are over."""
    if frontend not in core.frontends:
        core.frontends[frontend] = None
        for dead in core.dead_peers.values():
            core.send(frontend, m.PeerDead(dead))
