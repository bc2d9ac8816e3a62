"""Supervisor: the launcher's actor, which starts child processes, restarts crashed ones and informs their conductors.

It keeps a hot standby, rolls out new weights (rolling update) and drains the deployment at shutdown. Everything runs on
the thread of the actor loop, because children die with the thread that started them. The conductor decides what an exit
means for requests, and how many workers are needed.
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
"""Seconds between the start of a child and of a new standby: the child needs the cores first."""
SAMPLE_INTERVAL_S = 0.2
"""Seconds between two samples of the CPU time of workers."""
BUSY_FRACTION = 0.1
"""Minimum CPU share of an interval for a worker to count as computing."""
STOP_TIMEOUT_S = 2.0
"""Seconds to wait for a stopped worker before it is killed."""
NOT_NEEDED = "not needed now"
"""State of a planned worker that is not needed now."""
MAX_EXITS_KEPT = 1000
"""Maximum number of exits kept for `recent_exits`."""
MAX_TAIL_LINES = 20
"""Maximum number of output lines quoted in a LaunchError."""

log = logging.getLogger("mstar.launch")


class LaunchError(MstarError):
    """A deployment could not be started."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a deployment, common to all children."""

    directory: Path
    key: bytes
    models: dict[str, str]
    placements: dict[str, str]
    options: RuntimeConfig
    shards: dict[str, Shard]
    """Shards, by name of their conductor."""
    has_standby: bool

    def conductor_of(self, name: str) -> str:
        """Conductor of a worker; a conductor is its own."""
        return next(conductor for conductor, shard in self.shards.items() if name in (conductor, *shard.workers))


class Child:
    """A supervised name with its current process."""

    def __init__(self, name: str, *, is_needed: bool = True) -> None:
        self.peer = Peer(name, -1)
        self.process: ProcessHandle | None = None
        self.backoff = RestartBackoff()
        self.is_needed = is_needed
        self.start_at: float | None = 0.0
        """Time of the next start while it has no process; None if it stays down."""
        self.is_up = False
        self.cpu_s = 0.0
        """CPU time at the last sample, in seconds."""
        self.kill_reason = ""
        """Reason of its kill or stop."""
        self.stopping_since: float | None = None
        """Time at which it was told to stop because it is not needed."""

    def state(self) -> str:
        """State shown to operators."""
        if self.process:
            return "up" if self.is_up else self.process.pending_reason() or "starting"
        if not self.is_needed:
            return NOT_NEEDED
        return "failed: it crashed at every start" if self.start_at is None else "waiting to be started"


class Supervisor:
    """Supervisor of one deployment. During the start, `start_events` reports progress; None means all are up."""

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
        """Hot standby: a process without a role that can replace a crashed one at once."""
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
        """Set while all workers have the current version of the weights, as reported by conductors."""
        self.weights_rolled.set()
        self._unready, self._undrained, self._unrolled = {*shards}, {*shards}, set[str]()
        """Conductors that have not confirmed readiness, drain, and the rolling update, respectively."""
        self._is_roll_requested = False
        """Whether a further rolling update was requested during the current one."""
        self.starter = create_starter(lambda process: actor_loop.call_soon(lambda: self._on_exit(process)))
        self._sampled_at = 0.0
        self._actor_loop = actor_loop
        self._deployment = deployment
        self._address_book = address_book

    def processes(self) -> dict[str, ProcessHandle]:
        """Running processes, by name."""
        every = [*self.children.values(), self.standby]
        return {
            child.peer.name: process for child in every if (process := child.process) and not process.exited.is_set()
        }

    def drain(self) -> None:
        """Start draining. Sets `drained` when all conductors confirm, or have failed for good."""
        self.is_draining = True
        self._send_to_conductors(Drain(), *self._deployment.shards)

    def reload_weights(self) -> None:
        """Start a rolling update: replace every worker by one with reloaded weights. Sets `weights_rolled` when done.

        Updates run one after the other, so that a request finds the version it started with on all its workers.
        """
        self._is_roll_requested = True
        if self.weights_rolled.is_set():
            self.weights_rolled.clear()
            self._start_next_roll()

    def _start_next_roll(self) -> None:
        """Start the update that was requested meanwhile, or finish."""
        if not self._is_roll_requested:
            self.weights_rolled.set()
            return
        self._is_roll_requested = False
        self.weights_version += 1
        self._unrolled = {*self._deployment.shards}
        self._send_to_conductors(RollWeights(self.weights_version), *self._deployment.shards)

    def add_frontend(self, frontend: Peer) -> None:
        """Register a front end, and broadcast its address."""
        self.frontends[frontend.name] = frontend.incarnation
        self._broadcast_address(frontend, self._address_book.own_address)

    def close(self) -> list[ProcessHandle]:
        """Stop restarts. Returns the running processes."""
        self.is_closing = True
        return list(self.processes().values())

    def _send_to_conductors(self, message: Message, *conductors: str) -> None:
        for child in (self.children[name] for name in conductors):
            if child.process:
                self._actor_loop.send(LAUNCHER, child.peer, message)

    # ---------------------------------------------------------------- actor
    def receive(self, now: float, sender: Peer, message: Message) -> None:
        """Handle a message."""
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
        """A conductor reports all its workers up."""
        for name in (conductor, *self._deployment.shards[conductor].workers):
            if self.children[name].process:  # their own Register can arrive later
                self._on_up(now, self.children[name].peer)
        if _check_off(self._unready, conductor):
            self.is_starting = False
            self.start_events.put(None)

    def _on_worker_command(self, now: float, message: Kill | StartWorker | StopWorker) -> None:
        """Start, stop or kill a worker for its conductor."""
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
        """Start children that are due, kill the ones that did not stop in time, keep a standby."""
        if self.is_closing:
            return
        for child in self.children.values():
            if child.process is None:
                if child.is_needed and child.start_at is not None and child.start_at <= now:
                    self._start(now, child)
            elif child.process.is_unreachable():
                self._on_child_exited(now, child, child.kill_reason or "unreachable")
            elif child.stopping_since is not None and now - child.stopping_since > STOP_TIMEOUT_S:
                child.stopping_since = now
                child.process.send_signal(SIGKILL)
        self.starter.tick(now)
        self._report_computing(now)
        standby = self.standby
        is_due = standby.start_at is not None and standby.start_at <= now
        if self._deployment.has_standby and not self.is_starting and not standby.process and is_due:
            standby.process = self.starter.start(STANDBY_NAME)

    def _report_computing(self, now: float) -> None:
        """Report workers that use CPU time: their conductor must not declare them dead for a late heartbeat."""
        if now - self._sampled_at < SAMPLE_INTERVAL_S:
            return
        elapsed_s, self._sampled_at = now - self._sampled_at, now
        for name, child in self.children.items():
            if child.process:
                cpu_s = child.process.cpu_seconds()
                if name not in self._deployment.shards and cpu_s - child.cpu_s > BUSY_FRACTION * elapsed_s:
                    self._send_to_conductors(StillComputing(child.peer), self._deployment.conductor_of(name))
                child.cpu_s = cpu_s

    # ---------------------------------------------------------------- start
    def _start(self, now: float, child: Child) -> None:
        try:
            process = self.standby.process or self.starter.start(child.peer.name)
        except OSError as error:
            self._on_child_exited(now, child, f"could not start: {error}")
            return
        self.standby.process = None
        if self.standby.start_at is not None:
            self.standby.start_at = now + STANDBY_DELAY_S
        child.process = process
        child.peer = Peer(child.peer.name, child.peer.incarnation + 1)
        child.kill_reason, child.stopping_since = "", None
        if child.peer.incarnation > 0:
            self.restart_count += 1
        if shard := self._deployment.shards.get(child.peer.name):
            _restart_initial_workers([self.children[name] for name in shard.initial_workers], now)
        process.configure(self._child_config(child.peer))

    def _child_config(self, child_peer: Peer) -> ConductorConfig | WorkerConfig:
        conductor = self._deployment.conductor_of(child_peer.name)
        shard = self._deployment.shards[conductor]
        # Always include the conductor: a dead one registers with its peers after its restart.
        children = [self.children[name] for name in (conductor, *shard.workers)]
        running = [child.peer for child in children if child.process or child.peer.name == conductor]
        peers = {LAUNCHER.name: LAUNCHER.incarnation} | self.frontends
        peers |= {peer.name: peer.incarnation for peer in running if peer != child_peer}
        known = _known_addresses(self._address_book, self.frontends)
        fields = {
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
            return ConductorConfig(**fields)
        return WorkerConfig(
            **fields, conductor=conductor, black_box=str(self._deployment.directory / f"{child_peer}.box")
        )

    def _broadcast_address(self, peer: Peer, address: str) -> None:
        """Send the address of a peer to every child, and all addresses to that peer: its own copy can be outdated."""
        if not self._address_book.ip:
            return
        for child in self.children.values():
            if child.process and child.peer != peer:
                self._actor_loop.send(LAUNCHER, child.peer, PeerAddress(peer, address))
        if peer.name in self.children:
            for other, other_address in _known_addresses(self._address_book, self.frontends).items():
                if other != peer:
                    self._actor_loop.send(LAUNCHER, peer, PeerAddress(other, other_address))

    def _on_up(self, now: float, sender: Peer) -> None:
        child = self.children.get(sender.name)
        if child is None or child.peer != sender:
            return  # a front end
        if self.is_starting and not child.is_up:
            self.start_events.put(f"{sender.name} is up")
        is_new, child.is_up = not child.is_up, True
        child.backoff.on_up(now)
        if sender.name in self._deployment.shards and is_new:  # its predecessor has died with the command
            if self.is_draining:
                self._send_to_conductors(Drain(), sender.name)
            if not self.weights_rolled.is_set():
                self._send_to_conductors(RollWeights(self.weights_version), sender.name)

    # ---------------------------------------------------------------- exit
    def _on_exit(self, process: ProcessHandle) -> None:
        now = time.monotonic()
        if process is self.standby.process:
            self.standby.process = None
            delay_s = self.standby.backoff.on_exit(now)
            self.standby.start_at = None if delay_s is None else now + max(delay_s, STANDBY_DELAY_S)
            return
        child = next((child for child in self.children.values() if child.process is process), None)
        if child:  # None: a new incarnation replaced an unreachable process
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
        """Schedule the restart of an exited child, with exponential backoff."""
        if child.stopping_since is not None:
            child.start_at = now  # in case it is needed again already
            if not child.is_needed:
                self.starter.release(child.peer.name)
            return
        delay_s = child.backoff.on_exit(now)
        child.start_at = None if delay_s is None else now + delay_s
        if delay_s is None:
            log.error("%s crashed at every start and will not be restarted", child.peer.name)
            if _check_off(self._undrained, child.peer.name):  # it cannot finish any request
                self.drained.set()


def _check_off(pending: set[str], conductor: str) -> bool:
    """Remove a conductor from a set. Returns whether it was the last one."""
    was_pending = conductor in pending
    pending.discard(conductor)
    return was_pending and not pending


def _known_addresses(address_book: AddressBook, frontends: Mapping[str, int]) -> dict[Peer, str]:
    """Addresses of all peers, as far as known; empty on a single machine."""
    if not address_book.ip:
        return {}
    local = [LAUNCHER, *(Peer(name, incarnation) for name, incarnation in frontends.items())]
    return address_book.addresses() | dict.fromkeys(local, address_book.own_address)


def _restart_initial_workers(initial_workers: Iterable[Child], now: float) -> None:
    """Start the initial workers: a new conductor does not know which models were unloaded."""
    for child in initial_workers:
        if not child.is_needed:
            child.is_needed, child.start_at = True, now


def _start_error(peer: Peer, reason: str, process: ProcessHandle | None) -> LaunchError:
    lines = (process.stderr_tail() if process else "").splitlines()[-MAX_TAIL_LINES:] or ["(no output)"]
    output = "\n".join(f"    {line}" for line in lines)
    where, fix = "", "read its output"
    if process and process.host:
        where, fix = f" on {process.host}", f"{fix}; models and weights must be at the same path on every host"
    return LaunchError(f"{peer.name}{where} {reason} during the start. Its last output:\n{output}\n  fix: {fix}")
