"""Workers that start: since when, how often they failed, and which ones the autoscaler counts on.

Starts are requested from the launcher. A worker that was lost counts as starting too: the launcher restarts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mstar.conductor.membership import Membership
from mstar.conductor.outbox import Outbox
from mstar.plan.tables import Plan
from mstar.wire.messages import StartWorker


@dataclass(frozen=True, slots=True)
class StartTuning:
    """Timing of worker starts."""

    start_timeout_s: float = 600.0
    """Seconds to wait for a worker to start: large weights take minutes to load."""
    restart_grace_s: float = 5.0
    """Seconds to count on a lost worker. After that its host can be down, and another worker starts instead."""
    max_failed_starts: int = 3
    """Number of exits before registration after which a worker is given up."""
    retry_interval_s: float = 5.0
    """Seconds between repeated start requests: the launcher ignores one while the worker still exits."""


class PendingWorkers:
    """Workers of one conductor that start."""

    def __init__(self, membership: Membership, outbox: Outbox, tuning: StartTuning | None = None) -> None:
        self.pending_since: dict[str, float] = {}
        """By name, when the worker was requested or lost."""
        self.last_start_s = 0.0
        """Duration of the last start."""
        self._membership = membership
        self._outbox = outbox
        self._tuning = tuning or StartTuning()
        self._lost: set[str] = set()
        """Workers that were up before, and that the launcher restarts."""
        self._last_requested_at: dict[str, float] = {}
        self._failed_starts: Counter[str] = Counter()

    # ---------------------------------------------------------------- events
    def request_start(self, now: float, name: str) -> None:
        """Have the launcher start a worker."""
        self.pending_since[name] = self._last_requested_at[name] = now
        self._outbox.send_launcher(StartWorker(name))

    def on_lost(self, now: float, name: str) -> None:
        """Expect a lost worker to be restarted."""
        self.pending_since.setdefault(name, now)
        self._lost.add(name)

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
        """Give up workers that exceed the start timeout."""
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
        """Return those of the named workers that will be up soon."""
        pending = ((name, self.pending_since[name]) for name in names if name in self.pending_since)
        grace_s = self._tuning.restart_grace_s
        return [name for name, since in pending if name not in self._lost or now - since <= grace_s]

    def is_any_coming(self, plan: Plan) -> bool:
        """Return whether a worker of a seat starts, or exits and can be started again."""
        membership = self._membership
        draining = {worker.peer.name for worker in membership.draining()}
        names = {name for worker_set in plan.worker_sets for name in worker_set.workers}
        return not names.isdisjoint(draining | self.pending_since.keys() | membership.stopping.keys())

    def stopped(self, names: Iterable[str]) -> list[str]:
        """Return those of the named workers that neither run, start nor stop; least recently requested first."""
        membership = self._membership
        taken = membership.workers.keys() | self.pending_since.keys() | membership.stopping.keys()
        stopped = (name for name in names if name not in taken)
        return sorted(stopped, key=lambda name: self._last_requested_at.get(name, float("-inf")))
