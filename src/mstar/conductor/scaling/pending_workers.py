"""Workers that are to be started and are not up: since when, how often they were wanted, and who is counted on.

The launcher is told elsewhere: see `scaling`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

START_TIMEOUT_S = 600.0
"""A worker that is not up so long after it was wanted is not waited for: large weights take minutes."""
RESTART_GRACE_S = 5.0
"""One that was lost is started again by the launcher. If it is not back so soon, its host may be gone: others come."""
MAX_FAILED_STARTS = 3
"""One that died so often before it was up is not waited for."""
START_RETRY_INTERVAL_S = 5.0
"""After so many seconds it is said again that a worker is wanted: it may have been on its way out."""


class PendingWorkers:
    """The workers that start under one conductor."""

    def __init__(self) -> None:
        self.pending_since: dict[str, float] = {}
        """When they were wanted, or lost."""
        self.last_start_s = 0.0
        """How long the last start took."""
        self._lost: set[str] = set()
        """Those that were there and were lost."""
        self._last_requested_at: dict[str, float] = {}
        """When each worker was last wanted."""
        self._failed_starts: Counter[str] = Counter()

    def request_start(self, now: float, name: str) -> None:
        """One is to be started."""
        self.pending_since[name] = self._last_requested_at[name] = now

    def on_lost(self, now: float, name: str) -> None:
        """One that was there will be started again."""
        self.pending_since.setdefault(name, now)
        self._lost.add(name)

    def on_started(self, now: float, name: str) -> None:
        """One is up."""
        if name in self.pending_since:
            self.last_start_s = now - self.pending_since[name]
        self._remove(name)

    def on_exited(self, name: str) -> None:
        """One has ended, perhaps before it was up."""
        if name in self.pending_since:
            self._failed_starts[name] += 1
            if self._failed_starts[name] >= MAX_FAILED_STARTS:
                self._remove(name)

    def expire(self, now: float) -> None:
        """Wait no longer for those that take too long."""
        for name in [name for name, since in self.pending_since.items() if now - since > START_TIMEOUT_S]:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self.pending_since.pop(name, None)
        self._lost.discard(name)
        self._failed_starts.pop(name, None)

    def expected(self, now: float, names: Iterable[str]) -> list[str]:
        """Those that are counted on."""
        there = ((name, self.pending_since[name]) for name in names if name in self.pending_since)
        return [name for name, since in there if name not in self._lost or now - since <= RESTART_GRACE_S]

    def due_for_retry(self, now: float, names: Iterable[str]) -> list[str]:
        """Those of which it is time to say again that they are wanted."""
        found = [
            name
            for name in names
            if name in self.pending_since
            and now - self._last_requested_at.get(name, now - START_RETRY_INTERVAL_S) >= START_RETRY_INTERVAL_S
        ]
        self._last_requested_at.update(dict.fromkeys(found, now))
        return found

    def least_recently_requested(self, names: Iterable[str]) -> list[str]:
        """The one that was not wanted for the longest time first."""
        return sorted(names, key=lambda name: self._last_requested_at.get(name, float("-inf")))
