"""The launcher as an actor: starts children, starts them again when they die, and tells their conductors.

Everything here runs on the loop of the launcher's node, and in its thread alone, because children die with the thread
that started them. What a death means for requests is the conductor's business, and so is how many workers are needed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from signal import SIGKILL, SIGTERM

import msgspec

from mstar.config import ConductorConfig, RuntimeConfig, WorkerConfig
from mstar.errors import MstarError
from mstar.launch.process_handle import ProcessHandle, ProcessStarter
from mstar.launch.restart_backoff import RestartBackoff
from mstar.plan.shards import Shard
from mstar.wire.messages import (
    Drain,
    Drained,
    Kill,
    Message,
    Peer,
    PeerAddress,
    ProcessExited,
    Ready,
    Register,
    RollWeights,
    StartWorker,
    StillComputing,
    StopWorker,
    WeightsRolled,
)
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook

LAUNCHER = Peer("launcher", 0)
STANDBY_NAME = "standby"
STANDBY_DELAY_S = 0.5
"""How long after another child a spare is started: those who wait for the child need the cores more."""
SAMPLE_INTERVAL_S, BUSY_FRACTION = 0.2, 0.1
"""How often it is looked who computes, and in which part of that time at least."""
STOP_TIMEOUT_S = 2.0
"""How long a worker that is not needed may take to end before it is killed."""
NOT_NEEDED = "not needed now"
"""The state of a worker that is planned and not wanted."""
MAX_EXITS_KEPT = 1000
MAX_TAIL_LINES = 20

log = logging.getLogger("mstar.launch")


class LaunchError(MstarError):
    """A deployment could not be started."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What is started: the same for every child, in every life."""

    directory: Path
    key: bytes
    models: dict[str, str]
    placements: dict[str, str]
    options: RuntimeConfig
    shards: dict[str, Shard]
    """By the name of its conductor."""
    has_standby: bool

    def conductor_of(self, name: str) -> str:
        """The conductor of a worker; that of a conductor is itself."""
        return next(conductor for conductor, shard in self.shards.items() if name in (conductor, *shard.workers))


class Child:
    """A name, and the life it has now."""

    def __init__(self, name: str, *, is_needed: bool = True) -> None:
        self.peer = Peer(name, -1)
        self.process: ProcessHandle | None = None
        self.backoff = RestartBackoff()
        self.is_needed = is_needed
        self.start_at: float | None = 0.0
        """When it is to be started if it is wanted and has no process; None if it is given up."""
        self.is_up = False
        self.cpu_s = 0.0
        """How many seconds of processor time it had used when that was looked at last."""
        self.kill_reason = ""
        """Why it is killed, if it is."""
        self.stopping_since: float | None = None
        """When it was told to end because nobody needs it."""

    def state(self) -> str:
        """What an operator wants to know of it."""
        if self.process:
            return "up" if self.is_up else self.process.pending_reason() or "starting"
        if not self.is_needed:
            return NOT_NEEDED
        return "given up: it died at every start" if self.start_at is None else "waiting to be started"


class Supervisor:
    """The launcher of one deployment. Until everything is there, `news` says what happens; None is the end of it."""

    peer = LAUNCHER

    def __init__(
        self,
        actor_loop: ActorLoop,
        deployment: Deployment,
        address_book: AddressBook,
        create_starter: Callable[[Callable[[ProcessHandle], None]], ProcessStarter],
    ) -> None:
        shards = deployment.shards
        self.children = {name: Child(name) for name in shards} | {
            name: Child(name, is_needed=name in shard.initial_workers)
            for shard in shards.values()
            for name in shard.workers
        }
        self.standby = Child(STANDBY_NAME)
        """A process without a name yet, which can take the place of a dead one at once."""
        self.frontends: dict[str, int] = {}
        self.exits: deque[tuple[float, Peer, str]] = deque(maxlen=MAX_EXITS_KEPT)
        self.restart_count = 0
        self.start_events: queue.SimpleQueue[str | LaunchError | None] = queue.SimpleQueue()
        self.is_starting = True
        self.is_closing = False
        self.is_draining = False
        self.drained = threading.Event()
        self.weights_version = 0
        self.weights_rolled = threading.Event()
        """Set as long as every worker has the present edition, as far as conductors have said."""
        self.weights_rolled.set()
        self._unready, self._undrained, self._unrolled = {*shards}, {*shards}, set[str]()
        """Conductors that have not said yet that all are there; that nothing is left; that all are renewed."""
        self._is_roll_requested = False
        """Whether there are newer weights than those of the edition."""
        self.starter = create_starter(lambda process: actor_loop.call_soon(lambda: self._on_exit(process)))
        self._sampled_at = 0.0
        self._actor_loop = actor_loop
        self._deployment = deployment
        self._address_book = address_book

    def processes(self) -> dict[str, ProcessHandle]:
        """Those that run, by name."""
        every = [*self.children.values(), self.standby]
        return {
            child.peer.name: process for child in every if (process := child.process) and not process.exited.is_set()
        }

    def drain(self) -> None:
        """Have conductors finish what they have; `drained` is set when all say so, or can no more."""
        self.is_draining = True
        self._send_to_conductors(Drain(), *self._deployment.shards)

    def reload_weights(self) -> None:
        """Have every worker replaced by one that loads the weights anew; `renewed` is set when that is done.

        One renewal after the other: a request that began with an edition finds it wherever it goes on.
        """
        self._is_roll_requested = True
        if self.weights_rolled.is_set():
            self.weights_rolled.clear()
            self._start_next_roll()

    def _start_next_roll(self) -> None:
        """Begin the renewal that was asked for since the last one began, or be done."""
        if not self._is_roll_requested:
            self.weights_rolled.set()
            return
        self._is_roll_requested = False
        self.weights_version += 1
        self._unrolled = {*self._deployment.shards}
        self._send_to_conductors(RollWeights(self.weights_version), *self._deployment.shards)

    def add_frontend(self, frontend: Peer) -> None:
        """A front end is there."""
        self.frontends[frontend.name] = frontend.incarnation
        self._broadcast_address(frontend, self._address_book.own_address)

    def close(self) -> list[ProcessHandle]:
        """Start nothing more; what is left to be ended."""
        self.is_closing = True
        return list(self.processes().values())

    def _send_to_conductors(self, message: Message, *conductors: str) -> None:
        for child in (self.children[name] for name in conductors):
            if child.process:
                self._actor_loop.send(LAUNCHER, child.peer, message)

    # ---------------------------------------------------------------- as an actor
    def receive(self, now: float, sender: Peer, message: Message) -> None:
        """Take a message."""
        match message:
            case Register():
                self._on_up(now, sender)
            case Ready() if self.is_starting:
                self._on_ready(now, sender.name)
            case PeerAddress(peer=peer, address=address) if sender == peer:
                self._broadcast_address(peer, address)
            case Kill() | StartWorker() | StopWorker():
                self._on_worker_command(now, message)
            case WeightsRolled(weights_version=self.weights_version) if _check_off(self._unrolled, sender.name):
                self._start_next_roll()
            case Drained() if _check_off(self._undrained, sender.name):
                self.drained.set()
            case _:
                pass

    def _on_ready(self, now: float, conductor: str) -> None:
        """All are there that a conductor needs."""
        for name in (conductor, *self._deployment.shards[conductor].workers):
            if self.children[name].process:  # the conductor may have heard of them first
                self._on_up(now, self.children[name].peer)
        if _check_off(self._unready, conductor):
            self.is_starting = False
            self.start_events.put(None)

    def _on_worker_command(self, now: float, message: Kill | StartWorker | StopWorker) -> None:
        """Do what a conductor says of a worker."""
        child = self.children.get(message.worker if isinstance(message, StartWorker) else message.peer.name)
        if child is None:
            return
        if isinstance(message, StartWorker):
            if not child.is_needed:
                child.is_needed, child.start_at = True, now
                self.tick(now)
        elif child.process and child.peer == message.peer:
            if isinstance(message, Kill):
                child.kill_reason = message.reason
                child.process.send_signal(SIGKILL)
            elif child.stopping_since is None:
                child.is_needed, child.stopping_since, child.kill_reason = False, now, NOT_NEEDED
                child.process.send_signal(SIGTERM)

    def tick(self, now: float) -> None:
        """Start whoever is to be started now, and end whoever should have ended."""
        if self.is_closing:
            return
        for child in self.children.values():
            if child.process is None:
                if child.is_needed and child.start_at is not None and child.start_at <= now:
                    self._start(now, child)
            elif child.process.is_unreachable():
                self._on_child_exited(now, child, child.kill_reason or "cannot be reached")
            elif child.stopping_since is not None and now - child.stopping_since > STOP_TIMEOUT_S:
                child.stopping_since = now
                child.process.send_signal(SIGKILL)
        self.starter.tick(now)
        self._report_computing(now)
        spare = self.standby
        is_due = spare.start_at is not None and spare.start_at <= now
        if self._deployment.has_standby and not self.is_starting and not spare.process and is_due:
            spare.process = self.starter.start(STANDBY_NAME)

    def _report_computing(self, now: float) -> None:
        """Tell conductors which workers compute: one that does is not dead, even if it is not heard of."""
        if now - self._sampled_at < SAMPLE_INTERVAL_S:
            return
        spent, self._sampled_at = now - self._sampled_at, now
        for name, child in self.children.items():
            if child.process:
                used = child.process.cpu_seconds()
                if name not in self._deployment.shards and used - child.cpu_s > BUSY_FRACTION * spent:
                    self._send_to_conductors(StillComputing(child.peer), self._deployment.conductor_of(name))
                child.cpu_s = used

    # ---------------------------------------------------------------- birth
    def _start(self, now: float, child: Child) -> None:
        try:
            process = self.standby.process or self.starter.start(child.peer.name)
        except OSError as error:
            self._on_child_exited(now, child, f"could not be started: {error}")
            return
        self.standby.process = None
        if self.standby.start_at is not None:
            self.standby.start_at = now + STANDBY_DELAY_S
        child.process = process
        child.peer = Peer(child.peer.name, child.peer.incarnation + 1)
        child.kill_reason, child.stopping_since = "", None
        self.restart_count += child.peer.incarnation > 0
        if shard := self._deployment.shards.get(child.peer.name):
            _restart_initial_workers([self.children[name] for name in shard.initial_workers], now)
        process.configure(self._child_config(child.peer))

    def _child_config(self, child_peer: Peer) -> ConductorConfig | WorkerConfig:
        conductor = self._deployment.conductor_of(child_peer.name)
        shard = self._deployment.shards[conductor]
        # The conductor in any case: one that is dead now will greet who is there when it comes back.
        children = [self.children[name] for name in (conductor, *shard.workers)]
        there = [child.peer for child in children if child.process or child.peer.name == conductor]
        peers = {LAUNCHER.name: LAUNCHER.incarnation} | self.frontends
        peers |= {peer.name: peer.incarnation for peer in there if peer != child_peer}
        known = _known_addresses(self._address_book, self.frontends)
        told = {
            "name": child_peer.name,
            "incarnation": child_peer.incarnation,
            "peers": peers,
            "directory": str(self._deployment.directory),
            "key": self._deployment.key,
            "ip": self._address_book.ip,
            "addresses": {name: known[Peer(name, n)] for name, n in peers.items() if Peer(name, n) in known},
            "weights_version": self.weights_version,
            "models": {name: self._deployment.models[name] for name in shard.models},
            "placements": {name: self._deployment.placements[name] for name in shard.models},
            "options": self._deployment.options,
        }
        if child_peer.name == conductor:
            return ConductorConfig(**told)
        return WorkerConfig(
            **told, conductor=conductor, black_box=str(self._deployment.directory / f"{child_peer}.box")
        )

    def _broadcast_address(self, peer: Peer, address: str) -> None:
        """Tell every child where another one is, and that one where all are: what it was told may be old by now."""
        if not self._address_book.ip:
            return
        for child in self.children.values():
            if child.process and child.peer != peer:
                self._actor_loop.send(LAUNCHER, child.peer, PeerAddress(peer, address))
        if peer.name in self.children:
            for other, where in _known_addresses(self._address_book, self.frontends).items():
                if other != peer:
                    self._actor_loop.send(LAUNCHER, peer, PeerAddress(other, where))

    def _on_up(self, now: float, sender: Peer) -> None:
        child = self.children.get(sender.name)
        if child is None or child.peer != sender:
            return  # a front end
        if self.is_starting and not child.is_up:
            self.start_events.put(f"{sender.name} is up")
        is_new, child.is_up = not child.is_up, True
        child.backoff.on_up(now)
        if sender.name in self._deployment.shards and is_new:  # the one that was asked is dead
            if self.is_draining:
                self._send_to_conductors(Drain(), sender.name)
            if not self.weights_rolled.is_set():
                self._send_to_conductors(RollWeights(self.weights_version), sender.name)

    # ---------------------------------------------------------------- death
    def _on_exit(self, process: ProcessHandle) -> None:
        now = time.monotonic()
        if process is self.standby.process:
            self.standby.process = None
            wait = self.standby.backoff.on_exit(now)
            self.standby.start_at = None if wait is None else now + max(wait, STANDBY_DELAY_S)
            return
        child = next((child for child in self.children.values() if child.process is process), None)
        if child:  # another has taken the place of one that was lost
            self._on_child_exited(now, child, child.kill_reason or process.exit_reason())

    def _on_child_exited(self, now: float, child: Child, reason: str) -> None:
        peer, process = child.peer, child.process
        child.process, child.is_up = None, False
        self.exits.append((now, peer, reason))
        self._actor_loop.forget(peer)
        suspects = process.crash_suspects() if process else []
        if self.is_closing:
            return
        log.log(logging.WARNING if child.stopping_since is None else logging.INFO, "%s %s", peer, reason)
        if self.is_starting:
            self.is_closing = True
            self.start_events.put(_start_error(peer, reason, process))
            return
        self._send_to_conductors(ProcessExited(peer, reason, suspects), self._deployment.conductor_of(peer.name))
        self._schedule_restart(now, child)
        self.tick(now)

    def _schedule_restart(self, now: float, child: Child) -> None:
        """Decide when a name that has died is started again."""
        if child.stopping_since is not None:
            child.start_at = now  # if it is wanted again already
            if not child.is_needed:
                self.starter.release(child.peer.name)
            return
        wait = child.backoff.on_exit(now)
        child.start_at = None if wait is None else now + wait
        if wait is None:
            log.error("%s died at every start and is given up", child.peer.name)
            if _check_off(self._undrained, child.peer.name):  # nobody is left who could finish anything
                self.drained.set()


def _check_off(pending: set[str], conductor: str) -> bool:
    """Tick a conductor off; whether it was the last that was waited for."""
    was_waited = conductor in pending
    pending.discard(conductor)
    return was_waited and not pending


def _known_addresses(address_book: AddressBook, frontends: Mapping[str, int]) -> dict[Peer, str]:
    """Where everybody is, as far as it is known; nobody, on a single machine."""
    if not address_book.ip:
        return {}
    here = [LAUNCHER, *(Peer(name, incarnation) for name, incarnation in frontends.items())]
    return address_book.addresses() | dict.fromkeys(here, address_book.own_address)


def _restart_initial_workers(initial_workers: Iterable[Child], now: float) -> None:
    """There is a new conductor, which does not know of models that rest: those run that run from the start."""
    for child in initial_workers:
        if not child.is_needed:
            child.is_needed, child.start_at = True, now


def _start_error(peer: Peer, reason: str, process: ProcessHandle | None) -> LaunchError:
    lines = (process.stderr_tail() if process else "").splitlines()[-MAX_TAIL_LINES:] or ["(it wrote nothing)"]
    said = "\n".join(f"    {line}" for line in lines)
    where, fix = "", "see what it says"
    if process and process.host:
        where, fix = f" at {process.host}", f"{fix}; models and weights have to be at the same path on every host"
    return LaunchError(f"{peer.name}{where} {reason} before everything was up. Its last words:\n{said}\n  fix: {fix}")
