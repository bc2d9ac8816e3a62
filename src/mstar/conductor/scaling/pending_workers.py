"""Workers that start: since when, how often they failed, and which ones the autoscaler counts on.

Starts are requested from the launcher. A worker that was lost counts as starting too: the launcher restarts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mstar.conductor.membership import Membership
from mstar.conductor.outbox import Outbox
from mstar.conductor.scaling.crash_loops import CrashLoops
from mstar.plan.tables import Plan
from mstar.wire.messages import Peer, StartWorker, StopWorker


@dataclass(frozen=True, slots=True)
class StartTuning:
    """Timing of worker starts."""

    start_timeout_s: float = 600.0
    """Seconds to wait for a worker to start: large weights take minutes to load."""
    restart_grace_s: float = 5.0
    """Seconds to count on a lost worker. After that its host can be down, and another worker starts instead."""
    max_failed_starts: int = 3
    """Number of exits before registration after which a worker does not count as starting."""
    retry_interval_s: float = 5.0
    """Seconds between repeated start requests: the launcher ignores one while the worker still exits."""


class PendingWorkers:
    """Workers of one conductor that start."""

    def __init__(
        self, membership: Membership, crash_loops: CrashLoops, outbox: Outbox, tuning: StartTuning | None = None
    ) -> None:
        self.pending_since: dict[str, float] = {}
        """By name, when the worker was requested or lost."""
        self.last_start_s = 0.0
        """Duration of the last start."""
        self._membership = membership
        self._crash_loops = crash_loops
        self._outbox = outbox
        self._tuning = tuning or StartTuning()
        self._lost: set[str] = set()
        """Workers that were up before, and that the launcher restarts."""
        self._last_requested_at: dict[str, float] = {}
        self._failed_starts: Counter[str] = Counter()

    # ---------------------------------------------------------------- events
    def request_start(self, now: float, name: str, beside: Peer | None = None) -> None:
        """Have the launcher start a worker, or its successor beside a process of it that serves."""
        self.pending_since[name] = self._last_requested_at[name] = now
        self._outbox.send_launcher(StartWorker(name, beside=beside))

    def cancel_start(self, peer: Peer) -> None:
        """Have the launcher stop retrying a worker."""
        self._remove(peer.worker)
        self._outbox.send_launcher(StopWorker(peer))

    def on_lost(self, now: float, name: str, *, is_requested: bool) -> None:
        """Expect a lost worker to be restarted, or replaced by its successor that is starting.

        `is_requested`: request the restart at once, and not only when the worker has been starting for a while.
        """
        if name not in self.pending_since:
            self.pending_since[name] = now
            self._lost.add(name)
            if not is_requested:
                self._last_requested_at[name] = now

    def on_started(self, now: float, name: str) -> None:
        """Note that a worker registered."""
        if name in self.pending_since:
            self.last_start_s = now - self.pending_since[name]
        self._remove(name)

    def on_exited(self, name: str) -> None:
        """Note that a process exited; if it was starting, this is a failed start."""
        if name in self.pending_since:
            self._failed_starts[name] += 1
            if self._failed_starts[name] >= self._tuning.max_failed_starts:
                self._remove(name)

    def expire(self, now: float) -> None:
        """Remove the workers that exceed the start timeout."""
        timeout_s = self._tuning.start_timeout_s
        for name in [name for name, since in self.pending_since.items() if now - since > timeout_s]:
            self._remove(name)

    def retry_starts(self, now: float, names: Iterable[str]) -> None:
        """Repeat the start request of workers that have been starting for a while."""
        interval_s = self._tuning.retry_interval_s
        for name in names:
            if name in self.pending_since and now - self._last_requested_at.get(name, now - interval_s) >= interval_s:
                self._last_requested_at[name] = now
                self._outbox.send_launcher(StartWorker(name))

    def _remove(self, name: str) -> None:
        self.pending_since.pop(name, None)
        self._lost.discard(name)
        self._failed_starts.pop(name, None)

    # ---------------------------------------------------------------- queries
    def expected(self, now: float, names: Iterable[str]) -> list[str]:
        """Return those of the named workers that will be up soon. A worker in a crash loop will not."""
        pending = {name: self.pending_since[name] for name in names if name in self.pending_since}
        for starts in self._crash_loops.find(pending):
            del pending[starts.peer.worker]
        grace_s = self._tuning.restart_grace_s
        return [name for name, since in pending.items() if name not in self._lost or now - since <= grace_s]

    def is_any_coming(self, plan: Plan) -> bool:
        """Return whether a worker of a seat starts, or exits and can be started again. A crash loop does not count."""
        membership = self._membership
        draining = {worker.peer.worker for worker in membership.draining()}
        stopping = {peer.worker for peer in membership.stopping.values()}
        names = {name for worker_set in plan.worker_sets for name in worker_set.workers}
        failing = {starts.peer.worker for starts in self._crash_loops.find(names)}
        return not (names - failing).isdisjoint(draining | self.pending_since.keys() | stopping)

    def stopped(self, names: Iterable[str]) -> list[str]:
        """Return those of the named workers that neither run, start nor stop; least recently requested first."""
        membership = self._membership
        processes = (*(worker.peer for worker in membership.workers.values()), *membership.stopping.values())
        taken = {peer.worker for peer in processes} | self.pending_since.keys()
        stopped = (name for name in names if name not in taken)
        return sorted(stopped, key=lambda name: self._last_requested_at.get(name, float("-inf")))
