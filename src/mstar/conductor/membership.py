"""Cluster membership: registration, heartbeats, failure detection and readiness of workers and front ends.

A worker is identified by name and incarnation. A new incarnation replaces the old one. A worker that is silent for
`heartbeat_timeout_s` is killed: the launcher gets `Kill`, and the conductor treats the worker as lost at once. Each
peer gets `PeerDead` for dead incarnations, so that it stops keeping frames for them.

Other parts subscribe to started and lost workers. What happens to requests is decided there, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

from mstar.conductor.limits import ConductorLimits, HeartbeatTuning
from mstar.conductor.outbox import Outbox
from mstar.conductor.worker import Worker
from mstar.failpoints import hit
from mstar.wire import messages as m


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died, was killed, or was stopped."""

    peer: m.Peer
    suspects: Sequence[m.Suspect] = ()
    """Requests that the worker was computing when it died."""
    reason: str = ""


StartedListener = Callable[[float, Worker], None]
LostListener = Callable[[float, WorkerLost], None]


class Membership:
    """The workers and front ends of one conductor."""

    def __init__(
        self,
        outbox: Outbox,
        limits: ConductorLimits,
        known_workers: Set[str],
        initial_workers: Set[str],
        tuning: HeartbeatTuning | None = None,
    ) -> None:
        self.workers: dict[str, Worker] = {}
        """Live workers by name."""
        self.frontends: dict[m.Peer, None] = {}
        """Registered front ends, in order of registration."""
        self.dead_peers: dict[str, m.Peer] = {}
        """By name, the last incarnation that is known to be dead."""
        self.stopping: dict[str, m.Peer] = {}
        """Workers with a pending `StopWorker`: they have not exited."""
        self._outbox = outbox
        self._heartbeat_timeout_s = limits.heartbeat_timeout_s
        self._known_workers = known_workers
        self._initial_workers = initial_workers
        self._tuning = tuning or HeartbeatTuning()
        self._started_listeners: tuple[StartedListener, ...] = ()
        self._lost_listeners: tuple[LostListener, ...] = ()
        self._is_ready = False
        self._last_heartbeat_at = float("-inf")

    def subscribe(self, *, started: Iterable[StartedListener], lost: Iterable[LostListener]) -> None:
        """Set the listeners. They are called in this order."""
        self._started_listeners, self._lost_listeners = tuple(started), tuple(lost)

    # ---------------------------------------------------------------- queries
    def is_alive(self, peer: m.Peer) -> bool:
        """Return whether this incarnation of a worker is live."""
        worker = self.workers.get(peer.name)
        return worker is not None and worker.peer == peer

    def serving(self, names: Iterable[str]) -> list[Worker]:
        """Return those of the named workers that are live and not draining."""
        workers = (self.workers.get(name) for name in names)
        return [worker for worker in workers if worker is not None and worker.draining_since is None]

    def draining(self) -> list[Worker]:
        """Return the workers that are live and draining."""
        return [worker for worker in self.workers.values() if worker.draining_since is not None]

    def is_stopping(self, peer: m.Peer) -> bool:
        """Return whether this incarnation is being stopped and has not exited."""
        return self.stopping.get(peer.name) == peer

    # ---------------------------------------------------------------- registration
    def register(self, now: float, peer: m.Peer, weights_version: int) -> None:
        """Add a worker or a front end that has started. Idempotent."""
        hit("conductor.register")
        if peer.name not in self._known_workers:
            self.register_frontend(peer)
            return
        if self.is_stopping(peer):
            return
        previous = self.workers.get(peer.name)
        if previous is not None:
            if previous.peer.incarnation >= peer.incarnation:
                return
            self.remove(now, WorkerLost(previous.peer))
        if peer.incarnation:  # its predecessor can have died under an earlier conductor
            self.mark_dead(m.Peer(peer.name, peer.incarnation - 1))
        worker = self.workers[peer.name] = Worker(peer, now, now, weights_version)
        self._send_dead_peers(peer)
        self.check_ready()
        for listener in self._started_listeners:
            listener(now, worker)

    def register_frontend(self, frontend: m.Peer) -> None:
        """Add a front end. It can still keep frames for incarnations that died before."""
        if frontend not in self.frontends:
            self.frontends[frontend] = None
            self._send_dead_peers(frontend)

    def remove_frontend(self, peer: m.Peer) -> bool:
        """Remove a front end that exited; return whether the peer was one."""
        if peer not in self.frontends:
            return False
        del self.frontends[peer]
        return True

    def _send_dead_peers(self, peer: m.Peer) -> None:
        for dead in self.dead_peers.values():
            self._outbox.send(peer, m.PeerDead(dead))

    def check_ready(self) -> None:
        """Send `Ready` to the launcher once, when all initial workers are up."""
        if not self._is_ready and self._initial_workers <= self.workers.keys():
            self._is_ready = True
            self._outbox.send_launcher(m.Ready())

    # ---------------------------------------------------------------- signs of life
    def on_message(self, now: float, sender: m.Peer) -> None:
        """Any message of a live worker is a sign of life."""
        if self.is_alive(sender):
            worker = self.workers[sender.name]
            worker.last_alive_at = worker.last_message_at = now

    def on_still_computing(self, now: float, peer: m.Peer) -> None:
        """The launcher reports that a silent worker computes: extend its timeout, up to `compute_grace_s`."""
        if self.is_alive(peer):
            worker = self.workers[peer.name]
            if now - worker.last_message_at <= self._tuning.compute_grace_s:
                worker.last_alive_at = now

    def on_batch_running(self, now: float, peer: m.Peer, batch_running_s: float) -> None:
        """Kill a worker whose current batch exceeds `batch_timeout_s`."""
        if batch_running_s > self._tuning.batch_timeout_s:
            self.kill(now, peer, f"its batch has run for {batch_running_s:.0f} s")

    def tick(self, now: float) -> None:
        """Send heartbeats and kill silent workers."""
        if now - self._last_heartbeat_at >= self._tuning.interval_s:
            self._last_heartbeat_at = now
            for worker in self.workers.values():
                self._outbox.send(worker.peer, m.Heartbeat())
        for worker in list(self.workers.values()):
            silent_s = now - worker.last_alive_at
            if silent_s > self._heartbeat_timeout_s:
                self.kill(now, worker.peer, f"no heartbeat for {silent_s:.1f} s")

    # ---------------------------------------------------------------- lost workers
    def kill(self, now: float, peer: m.Peer, reason: str) -> None:
        """Have the launcher kill a worker, and treat it as lost at once."""
        self._outbox.send_launcher(m.Kill(peer, reason))
        self.remove(now, WorkerLost(peer))

    def stop(self, now: float, peer: m.Peer) -> None:
        """Have the launcher stop a drained worker. The launcher does not restart it."""
        self.stopping[peer.name] = peer
        self._outbox.send_launcher(m.StopWorker(peer))
        self.remove(now, WorkerLost(peer, reason=f"worker {peer} was stopped"))

    def confirm_stopped(self, peer: m.Peer) -> bool:
        """Note that a process exited; return whether it was being stopped."""
        if not self.is_stopping(peer):
            return False
        del self.stopping[peer.name]
        return True

    def remove(self, now: float, lost: WorkerLost) -> None:
        """Remove a live worker and notify the listeners."""
        del self.workers[lost.peer.name]
        for listener in self._lost_listeners:
            listener(now, lost)

    def mark_dead(self, peer: m.Peer) -> None:
        """Tell all peers that an incarnation has exited, so that they drop what they keep for it."""
        last = self.dead_peers.get(peer.name)
        if last is None or last.incarnation < peer.incarnation:
            self.dead_peers[peer.name] = peer
            for other in (*(worker.peer for worker in self.workers.values()), *self.frontends):
                if other != peer:
                    self._outbox.send(other, m.PeerDead(peer))
