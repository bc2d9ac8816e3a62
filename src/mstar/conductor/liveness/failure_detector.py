"""Failure detector of workers: finds unresponsive workers, and kills those without progress.

A worker is lost when its process has exited. A silent worker can be paused and come back with its weights:

1. Without a sign of life for `heartbeat_timeout_s` it is unresponsive. Its requests move to other workers if they can.
2. Any message makes it responsive again.
3. Without progress for `progress_timeout_s` it is killed: the launcher gets `Kill`, and the conductor treats it as lost
   at once. Of several silent workers only one is killed in `second_look_s`.
4. A worker that was up under an earlier conductor and has sent nothing to this one is killed after the same time. It
   hangs: a worker that runs registers with a new conductor.

Times are those of an `ActiveClock`: pauses of the conductor do not count. Exits are handled by `Membership`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mstar.conductor.limits import ConductorLimits, HeartbeatTuning
from mstar.conductor.membership import Membership
from mstar.conductor.outbox import Outbox
from mstar.conductor.worker import Worker
from mstar.wire import messages as m

UnresponsiveListener = Callable[[float, Worker], None]


class FailureDetector:
    """Failure detection of the workers of one conductor."""

    def __init__(
        self, membership: Membership, outbox: Outbox, limits: ConductorLimits, tuning: HeartbeatTuning | None = None
    ) -> None:
        self._membership = membership
        self._outbox = outbox
        self._heartbeat_timeout_s = limits.heartbeat_timeout_s
        self._tuning = tuning or HeartbeatTuning()
        self._unresponsive_listeners: tuple[UnresponsiveListener, ...] = ()
        self._last_heartbeat_at = float("-inf")
        self._last_kill_at = float("-inf")
        self._unregistered: dict[m.Peer, float] = {}
        """Workers that were up under an earlier conductor, with the time since which a message is expected."""

    def expect(self, workers: Iterable[m.Peer]) -> None:
        """Note workers that were up when this conductor started. Call it before the first tick."""
        self._unregistered = dict.fromkeys(workers, float("inf"))

    def subscribe(self, unresponsive: Iterable[UnresponsiveListener]) -> None:
        """Set the listeners. They are called for each unresponsive worker on every tick, in this order."""
        self._unresponsive_listeners = tuple(unresponsive)

    def on_message(self, now: float, sender: m.Peer) -> None:
        """Any message of a live worker is a sign of life."""
        self._unregistered.pop(sender, None)
        if self._membership.is_alive(sender):
            worker = self._membership.workers[sender.name]
            worker.last_alive_at = worker.last_message_at = now
            if not worker.is_responsive:
                self._membership.set_responsive(worker, is_responsive=True)

    def on_still_computing(self, now: float, peer: m.Peer) -> None:
        """The launcher reports that a silent worker computes: a sign of life, up to `compute_grace_s`."""
        if self._membership.is_alive(peer):
            worker = self._membership.workers[peer.name]
            if now - worker.last_message_at <= self._tuning.compute_grace_s:
                worker.last_alive_at = now
                self._membership.set_responsive(worker, is_responsive=True)

    def on_batch_running(self, now: float, peer: m.Peer, batch_running_s: float, batch_expected_s: float) -> None:
        """Kill a worker whose current batch makes no progress."""
        worker = self._membership.workers[peer.name]
        worker.batch_expected_s = batch_expected_s
        if batch_running_s > self._progress_timeout_s(worker):
            self._membership.kill(now, peer, f"its batch has run for {batch_running_s:.0f} s")

    def tick(self, now: float) -> None:
        """Send heartbeats, find unresponsive workers, and kill one that is silent for too long."""
        workers = self._membership.workers
        if now - self._last_heartbeat_at >= self._tuning.interval_s:
            self._last_heartbeat_at = now
            for worker in workers.values():
                self._outbox.send(worker.peer, m.Heartbeat())
        for worker in workers.values():
            silent_s = now - worker.last_alive_at
            if silent_s > self._heartbeat_timeout_s:
                self._membership.set_responsive(worker, is_responsive=False)
        unresponsive = [worker for worker in workers.values() if not worker.is_responsive]
        for worker in unresponsive:
            for listener in self._unresponsive_listeners:
                listener(now, worker)
        if unresponsive:
            self._kill_silent(now, unresponsive)
        if self._unregistered:
            self._kill_unregistered(now)

    def _kill_unregistered(self, now: float) -> None:
        """Kill a worker that does not register with this conductor."""
        dead_peers = self._membership.dead_peers
        for peer, since in [*self._unregistered.items()]:
            self._unregistered[peer] = min(since, now)  # the first tick starts the time
            if (dead := dead_peers.get(peer.name)) is not None and dead.incarnation >= peer.incarnation:
                del self._unregistered[peer]
        late = [peer for peer, since in self._unregistered.items() if now - since > self._tuning.progress_timeout_s]
        if late and now - self._last_kill_at >= self._tuning.second_look_s:
            self._last_kill_at = now
            silent_s = now - self._unregistered.pop(late[0])
            self._outbox.send_launcher(m.Kill(late[0], f"no message to a new conductor for {silent_s:.0f} s"))

    def _kill_silent(self, now: float, unresponsive: Sequence[Worker]) -> None:
        """Kill the worker that is silent for the longest time, if that is too long."""
        silent = [worker for worker in unresponsive if now - worker.last_message_at > self._progress_timeout_s(worker)]
        if silent and now - self._last_kill_at >= self._tuning.second_look_s:
            self._last_kill_at = now
            worker = min(silent, key=lambda worker: worker.last_message_at)
            self._membership.kill(now, worker.peer, f"no message for {now - worker.last_message_at:.0f} s")

    def _progress_timeout_s(self, worker: Worker) -> float:
        tuning = self._tuning
        return max(tuning.progress_timeout_s, tuning.progress_timeout_batches * worker.batch_expected_s)
