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
from collections.abc import Callable, Container, Iterable
from signal import SIGKILL

from mstar.errors import MstarError
from mstar.launch.child import NOT_NEEDED, Child, RestartStatus
from mstar.launch.conductor_links import ConductorLinks
from mstar.launch.deployment import LAUNCHER, Deployment
from mstar.launch.frontends.group import FrontendGroup
from mstar.launch.peer_addresses import PeerAddresses
from mstar.launch.process_handle import ChildConfig, ProcessHandle, ProcessStarter
from mstar.launch.process_monitor import ProcessMonitor
from mstar.launch.standby import STANDBY_NAME, Standby
from mstar.launch.weights_rollout import WeightsRollout
from mstar.launch.worker_processes import (
    children_of,
    create_children,
    current_children,
    kill_rolled_back,
    on_exited,
    on_rolled_back,
    request_start,
)
from mstar.process_tuning import process_usage
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
    RolloutFailed,
    RollWeights,
    StartWorker,
    StatsQuery,
    StatsReply,
    StopWorker,
    WeightsRolled,
)
from mstar.wire.transport.actor_loop import SLOW_TICKS, TICK_INTERVAL_S, ActorLoop
from mstar.wire.transport.address_book import AddressBook

STOP_TIMEOUT_S = 2.0
"""Seconds to wait for a stopped worker before it is killed."""
CRASH_LOOP_STARTS = 3
"""Number of failed starts in a row after which a conductor is not waited for at shutdown."""
MAX_EXITS_KEPT = 1000
"""Maximum number of exits kept for `recent_exits`."""
MAX_TAIL_LINES = 20
"""Maximum number of output lines quoted in a LaunchError."""

log = logging.getLogger("mstar.launch")


class LaunchError(MstarError):
    """A deployment could not be started."""


class Supervisor:
    """Supervisor of one deployment. During the start, `start_events` reports progress; None means all are up."""

    peer = LAUNCHER
    tick_interval = SLOW_TICKS

    def __init__(
        self,
        actor_loop: ActorLoop,
        deployment: Deployment,
        address_book: AddressBook,
        create_starter: Callable[[Callable[[ProcessHandle], None]], ProcessStarter],
        frontends: FrontendGroup | None = None,
    ) -> None:
        shards = deployment.shards
        self.children = {name: Child(name) for name in shards}
        for shard in shards.values():
            for worker in shard.workers:
                is_needed, has_successors = worker in shard.initial_workers, deployment.has_successors
                self.children |= create_children(worker, is_needed=is_needed, has_successors=has_successors)
        self.exits: deque[tuple[float, Peer, str]] = deque(maxlen=MAX_EXITS_KEPT)
        self.restart_count = 0
        self.start_events: queue.SimpleQueue[str | LaunchError | None] = queue.SimpleQueue()
        self.is_starting = True
        self.is_standby_held = False
        """Whether the standby must wait although the start is complete: warm-up requests need the cores first."""
        self.is_closing = False
        self.is_draining = False
        self.drained = threading.Event()

        def send(peer: Peer, message: Message) -> None:
            actor_loop.send(LAUNCHER, peer, message)

        self.conductors = ConductorLinks(self.children, deployment, send)
        self._monitor = ProcessMonitor({**self.children}, self.conductors)
        self.frontends = frontends or FrontendGroup()
        _check_frontend_names(self.frontends.names, self.children)
        self.children |= self.frontends.attach(send, actor_loop.call_soon)
        self.addresses = PeerAddresses(address_book, self.children, send)
        self.rollout = WeightsRollout(shards, self.conductors.send_to_all)
        self._unready, self._undrained = {*shards, *self.frontends.names}, {*shards}
        """Conductors and front ends that have not confirmed readiness, and conductors that have not drained."""
        self.starter = create_starter(lambda process: actor_loop.call_soon(lambda: self._on_exit(process)))
        self.standby = Standby(self.starter)
        self._actor_loop = actor_loop
        self._deployment = deployment

    def processes(self) -> dict[str, ProcessHandle]:
        """Running processes by the name of their conductor or worker; that of the second one of a worker has its role.

        Can be called from other threads.
        """
        current, processes = current_children(self.children), dict[str, ProcessHandle]()
        for child in self.children.values():
            if process := child.process:  # read once: it can exit meanwhile
                role = "" if current[child.peer.worker] is child else f" ({child.role()})"
                processes[child.peer.worker + role] = process
        if standby := self.standby.process:
            processes[STANDBY_NAME] = standby
        return {name: process for name, process in processes.items() if not process.exited.is_set()}

    def drain(self) -> None:
        """Start draining. Sets `drained` when each conductor has confirmed, or is in a crash loop."""
        self.is_draining = True
        self.conductors.send_to_all(Drain())

    def reload_weights(self) -> None:
        """Start a rolling update: replace every worker by one with reloaded weights."""
        for child in self.children.values():  # the new weights can be what a worker in a crash loop needs
            child.start_at = 0.0
        self.rollout.request()

    def close(self) -> list[ProcessHandle]:
        """Stop restarts. Returns the running processes."""
        self.is_closing = True
        return list(self.processes().values())

    # ---------------------------------------------------------------- actor
    def receive(self, now: float, sender: Peer, message: Message) -> None:
        """Handle a message."""
        self._monitor.on_message(now, sender)
        match message:
            case Register():
                self._on_up(now, sender)
                if (child := self.children.get(sender.name)) and child.peer == sender:
                    child.devices, child.nondeterminism = message.devices, message.nondeterminism
            case Ready():
                self._on_ready(now, sender)
            case PeerAddress(peer=peer, address=address) if sender == peer:
                self.addresses.broadcast(peer, address)
            case Kill() | StartWorker() | StopWorker():
                self._on_worker_command(now, message)
            case WeightsRolled():
                self.rollout.on_rolled(sender.name, message)
            case RolloutFailed():
                on_rolled_back(self._deployment.shards[sender.name].workers, self.children)
                self.rollout.on_failed(sender.name, message)
            case Drained() if _check_off(self._undrained, sender.name):
                self.drained.set()
            case StatsQuery():
                self._actor_loop.send(LAUNCHER, sender, StatsReply(message.correlation_id, process_usage()))
            case _:
                pass

    def _on_ready(self, now: float, sender: Peer) -> None:
        """A conductor reports all its workers up, or a front end that it accepts requests."""
        if sender.name in self.frontends.names:
            self.frontends.on_accepting(sender)
        elif self.is_starting:
            for name in (sender.name, *self._deployment.shards[sender.name].workers):
                if self.children[name].process:  # their own Register can arrive later
                    self._on_up(now, self.children[name].peer)
            self._check_start(sender.name)

    def _check_start(self, name: str) -> None:
        """A conductor with its workers, or a front end, is up: the start is complete after the last one."""
        if self.is_starting and _check_off(self._unready, name):
            self.is_starting = False
            self.start_events.put(None)

    def _on_worker_command(self, now: float, message: Kill | StartWorker | StopWorker) -> None:
        """Start, stop or kill a worker for its conductor, or kill a conductor that hangs."""
        if isinstance(message, StartWorker):
            request_start(now, message, self.children)
            self.tick(now)
            return
        child = self.children.get(message.peer.name)
        if child is None:
            return
        if isinstance(message, Kill):
            if child.process and child.peer == message.peer:
                child.kill_reason = message.reason
                child.process.send_signal(SIGKILL)
        elif child.is_meant(message.peer) and child.stop(now):
            self.starter.release(child.peer.name)

    def tick(self, now: float) -> None:
        """Start children that are due, kill the ones that did not stop in time, keep a standby."""
        if self.is_closing:
            return
        for child in self.children.values():
            if child.process is None:
                if child.is_needed and child.start_at <= now:
                    self._start(now, child)
            elif child.process.is_unreachable():
                self._on_child_exited(now, child, child.kill_reason or "unreachable")
            elif child.stopping_since is not None and now - child.stopping_since > STOP_TIMEOUT_S:
                child.stopping_since = now
                child.process.send_signal(SIGKILL)
        if self.is_draining:
            self._skip_failing_conductors()
        self.frontends.tick(now)
        self.starter.tick(now)
        self._monitor.sample(now)
        if kill := self._monitor.find_hung(now):
            self._on_worker_command(now, kill)
        if self._deployment.has_standby and not self.is_starting and not self.is_standby_held:
            self.standby.tick(now)
        self._tick_at_next_start(now)

    def _tick_at_next_start(self, now: float) -> None:
        """Do not start a child late because regular ticks are far apart."""
        if starts := [child.start_at for child in self.children.values() if child.is_needed and child.process is None]:
            self._actor_loop.tick_within(self.peer, max(TICK_INTERVAL_S, min(starts) - now))

    def _skip_failing_conductors(self) -> None:
        """End the drain of conductors that fail to start: they cannot finish any request."""
        failing = [name for name in self._undrained if self.children[name].backoff.failed_starts >= CRASH_LOOP_STARTS]
        if any(_check_off(self._undrained, name) for name in failing):
            self.drained.set()

    # ---------------------------------------------------------------- start
    def _start(self, now: float, child: Child) -> None:
        name = child.peer.name
        try:
            # Its worker still serves, so no request waits for a successor. The standby replaces what has died.
            is_own = child.is_successor or child.peer.worker in self._deployment.without_standby
            is_own = is_own or name in self.frontends.names  # a standby has modules and weights that it does not need
            process = self.starter.start(name) if is_own else self.standby.take(now, name)
        except OSError as error:
            self._on_child_exited(now, child, f"could not start: {error}")
            return
        child.on_started(process)
        self.frontends.on_changed()
        if child.peer.incarnation > 0 or child.is_successor:
            self.restart_count += 1
        if shard := self._deployment.shards.get(name):
            for worker in shard.initial_workers:  # a new conductor does not know which models were unloaded
                request_start(now, StartWorker(worker), self.children)
        process.configure(self._child_config(child.peer))

    def _child_config(self, peer: Peer) -> ChildConfig:
        frontends = self.addresses.frontends | self.frontends.running()
        if self.frontends.settings and peer.name in self.frontends.names:
            return self._deployment.frontend_config(peer, self.children, frontends, self.frontends.settings)
        version = self.rollout.version_for(self._deployment.conductor_of(peer.name))
        return self._deployment.child_config(peer, self.children, frontends, self.addresses.address_book, version)

    def _on_up(self, now: float, sender: Peer) -> None:
        child = self.children.get(sender.name)
        if child is None or child.peer != sender or child.stopping_since is not None:
            return  # a front end of this process, or a child that was stopped while it started
        if self.is_starting and not child.is_up:
            self.start_events.put(f"{sender.name} is up")
        is_new = not child.is_up
        self.frontends.on_changed()
        child.backoff.on_up(now)
        if child.exit_reason:
            log.info("%s is ready again", _describe(child, self._deployment))
            child.exit_reason = ""
        child.is_up = True
        if sender.name in self.frontends.names:
            self._check_start(sender.name)
        if sender.name in self._deployment.shards and is_new:  # its predecessor has died with the command
            names = self._deployment.shards[sender.name].workers
            workers = [each for name in names for each in children_of(name, self.children)]
            for report in (*_exit_reports(now, workers), *self.frontends.exit_reports()):
                self.conductors.send(sender.name, report)
            if self.is_draining:
                self.conductors.send(sender.name, Drain())
            if self.rollout.is_pending(sender.name):
                self.conductors.send(sender.name, RollWeights(self.rollout.weights_version))

    # ---------------------------------------------------------------- exit
    def _on_exit(self, process: ProcessHandle) -> None:
        now = time.monotonic()
        if self.standby.on_exit(now, process):
            return
        child = next((child for child in self.children.values() if child.process is process), None)
        if child:  # None: a new incarnation replaced an unreachable process
            self._on_child_exited(now, child, child.kill_reason or process.exit_reason())

    def _on_child_exited(self, now: float, child: Child, reason: str) -> None:
        peer, process, cause = child.peer, child.process, child.exit_cause()
        child.process, child.is_up = None, False
        self.frontends.on_changed()
        self.exits.append((now, peer, reason))
        self._actor_loop.forget(peer)
        self._monitor.forget(peer)
        suspects = process.crash_suspects() if process else []
        if self.is_closing:
            return
        if self.is_starting:
            log.warning("%s %s", peer, reason)
            self.is_closing = True
            self.start_events.put(_start_error(peer, reason, process))
            return
        delay_s = self._schedule_restart(now, child, reason)
        on_exited(child, self.children)
        if peer.name in self.frontends.names:  # no conductor decides about its restarts
            self.frontends.on_exited(peer)
            self.conductors.send_to_all(ProcessExited(peer, reason))
        else:
            exited = ProcessExited(peer, reason, suspects, child.backoff.failed_starts, delay_s, cause)
            self.conductors.send_to_conductor_of(peer.name, exited)
        if shard := self._deployment.shards.get(peer.name):
            kill_rolled_back(now, shard.workers, self.children)
        self.tick(now)

    def _schedule_restart(self, now: float, child: Child, reason: str) -> float:
        """Schedule the restart of an exited child, with exponential backoff. Returns the delay in seconds."""
        if child.stopping_since is not None:
            log.info("%s %s", child.peer, reason)
            child.start_at = now  # in case it is needed again already
            if not child.is_needed:
                self.starter.release(child.peer.name)
            return 0.0
        delay_s = child.backoff.on_exit(now)
        child.start_at, child.exit_reason = now + delay_s, reason
        if attempt := child.backoff.failed_starts:
            name, next_attempt = _describe(child, self._deployment), f"in {delay_s:.1f} s" if delay_s else "now"
            log.warning("%s failed to start (attempt %d, %s), next attempt %s", name, attempt, reason, next_attempt)
        else:
            log.warning("%s %s", child.peer, reason)
        return delay_s


def _check_frontend_names(names: Iterable[str], taken: Container[str]) -> None:
    if conflicts := [name for name in names if name in taken]:
        what = f"a placement names the worker `{conflicts[0]}`, which is the name of a front end"
        raise LaunchError(f"{what}\n  fix: choose another name for the worker")


def _check_off(pending: set[str], name: str) -> bool:
    """Remove a process from a set. Returns whether it was the last one."""
    was_pending = name in pending
    pending.discard(name)
    return was_pending and not pending


def _start_error(peer: Peer, reason: str, process: ProcessHandle | None) -> LaunchError:
    lines = (process.stderr_tail() if process else "").splitlines()[-MAX_TAIL_LINES:] or ["(no output)"]
    output = "\n".join(f"    {line}" for line in lines)
    where, fix = "", "read its output"
    if process and process.host:
        where, fix = f" on {process.host}", f"{fix}; models and weights must be at the same path on every host"
    return LaunchError(f"{peer.name}{where} {reason} during the start. Its last output:\n{output}\n  fix: {fix}")


def _exit_reports(now: float, workers: Iterable[Child]) -> list[ProcessExited]:
    """Reports of the processes that have exited, for a new conductor: it has not seen their exits.

    Those that are not needed come first: a conductor keeps the failed starts of the last report of a worker.
    """
    exited = [child for child in workers if child.process is None and child.peer.incarnation >= 0]
    reports: list[ProcessExited] = []
    for child in sorted(exited, key=lambda child: child.is_needed):
        status = child.restart_status(now) if child.is_needed else RestartStatus(reason=NOT_NEEDED)
        reports.append(ProcessExited(child.peer, status.reason, [], status.failed_starts, status.next_start_in_s))
    return reports


def _describe(child: Child, deployment: Deployment) -> str:
    is_worker = any(child.peer.worker in shard.workers for shard in deployment.shards.values())
    return f"worker {child.peer.worker}" if is_worker else child.peer.name
