"""Cluster membership: registration, readiness, stop and loss of workers and front ends.

A process is identified by name and incarnation. A new incarnation replaces the old one. During a rolling update a
worker of the placement can have two processes with different names (`process_names`). Each peer gets `PeerDead` for
dead incarnations, so that it stops keeping frames for them. Which silent worker is killed is decided by
`FailureDetector`.

Other parts subscribe to started and lost workers. What happens to requests is decided there, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from mstar.conductor.outbox import Outbox
from mstar.conductor.requests import Request
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
    cause: m.ExitCause = m.ExitCause.EXTERNAL
    requests: Mapping[str, Request] = field(default_factory=dict[str, Request])
    """By id, the requests of which it had something, for the listeners. Some may have ended."""


StartedListener = Callable[[float, Worker], None]
LostListener = Callable[[float, WorkerLost], None]


class Membership:
    """The workers and front ends of one conductor."""

    def __init__(self, outbox: Outbox, known_workers: Set[str], initial_workers: Set[str]) -> None:
        self.workers: dict[str, Worker] = {}
        """Live worker processes by their name."""
        self.unresponsive: frozenset[m.Peer] = frozenset()
        """Live workers without a sign of life within the heartbeat timeout. Another object after each change."""
        self.frontends: dict[m.Peer, None] = {}
        """Registered front ends, in order of registration."""
        self.dead_peers: dict[str, m.Peer] = {}
        """By process name, the last incarnation that is known to be dead."""
        self.stopping: dict[str, m.Peer] = {}
        """Processes with a pending `StopWorker`, by name: they have not exited."""
        self._outbox = outbox
        self._known_workers = known_workers
        self._initial_workers = initial_workers
        self._started_listeners: tuple[StartedListener, ...] = ()
        self._lost_listeners: tuple[LostListener, ...] = ()
        self._is_ready = False
        self._peers_by_worker: dict[str, m.Peer] | None = None

    def subscribe(self, *, started: Iterable[StartedListener], lost: Iterable[LostListener]) -> None:
        """Set the listeners. They are called in this order."""
        self._started_listeners, self._lost_listeners = tuple(started), tuple(lost)

    # ---------------------------------------------------------------- queries
    def is_alive(self, peer: m.Peer) -> bool:
        """Return whether this incarnation of a worker is live."""
        worker = self.workers.get(peer.name)
        return worker is not None and worker.peer == peer

    def is_responsive(self, peer: m.Peer) -> bool:
        """Return whether this incarnation of a worker is live and was not silent for too long."""
        return self.is_alive(peer) and self.workers[peer.name].is_responsive

    def peers_by_worker(self) -> Mapping[str, m.Peer]:
        """Return the live process of each worker, of two the newer one. The same object until a process changes."""
        if self._peers_by_worker is None:
            self._peers_by_worker = {worker.peer.worker: worker.peer for worker in self.workers.values()}
        return self._peers_by_worker

    def processes(self, workers: Iterable[str]) -> list[Worker]:
        """Return the live processes of workers of the placement."""
        processes = (self.workers.get(name) for worker in workers for name in m.process_names(worker))
        return [process for process in processes if process is not None]

    def serving(self, workers: Iterable[str]) -> list[Worker]:
        """Return the processes of workers that are live and not draining."""
        return [process for process in self.processes(workers) if process.draining_since is None]

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
        if peer.worker not in self._known_workers:
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
        self._peers_by_worker = None
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
        if not self._is_ready and self._initial_workers <= {worker.peer.worker for worker in self.workers.values()}:
            self._is_ready = True
            self._outbox.send_launcher(m.Ready())

    def set_responsive(self, worker: Worker, *, is_responsive: bool) -> None:
        """Note whether there was a sign of life of a worker within the heartbeat timeout."""
        if worker.is_responsive != is_responsive:
            worker.is_responsive = is_responsive
            self.unresponsive ^= {worker.peer}

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
        worker = self.workers.pop(lost.peer.name)
        self.set_responsive(worker, is_responsive=True)
        self._peers_by_worker = None
        lost = replace(lost, requests=worker.all_requests())
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
