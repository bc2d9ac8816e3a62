"""Workers that are to be started and are not up: since when, how often they were wanted, and who is counted on.

The launcher is told elsewhere: see `scaling`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

LONGEST = 600.0
"""A worker that is not up so long after it was wanted is not waited for: large weights take minutes."""
BACK = 5.0
"""One that was lost is started again by the launcher. If it is not back so soon, its host may be gone: others come."""
STILLBORN = 3
"""One that died so often before it was up is not waited for."""
AGAIN = 5.0
"""After so many seconds it is said again that a worker is wanted: it may have been on its way out."""


class Starts:
    """The workers that start under one conductor."""

    def __init__(self) -> None:
        self.since: dict[str, float] = {}
        """When they were wanted, or lost."""
        self.took_s = 0.0
        """How long the last start took."""
        self._missing: set[str] = set()
        """Those that were there and were lost."""
        self._tried: dict[str, float] = {}
        """When each worker was last wanted."""
        self._stillborn: Counter[str] = Counter()

    def want(self, now: float, name: str) -> None:
        """One is to be started."""
        self.since[name] = self._tried[name] = now

    def lost(self, now: float, name: str) -> None:
        """One that was there will be started again."""
        self.since.setdefault(name, now)
        self._missing.add(name)

    def came(self, now: float, name: str) -> None:
        """One is up."""
        if name in self.since:
            self.took_s = now - self.since[name]
        self._forget(name)

    def died(self, name: str) -> None:
        """One has ended, perhaps before it was up."""
        if name in self.since:
            self._stillborn[name] += 1
            if self._stillborn[name] >= STILLBORN:
                self._forget(name)

    def expire(self, now: float) -> None:
        """Wait no longer for those that take too long."""
        for name in [name for name, since in self.since.items() if now - since > LONGEST]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self.since.pop(name, None)
        self._missing.discard(name)
        self._stillborn.pop(name, None)

    def awaited(self, now: float, names: Iterable[str]) -> list[str]:
        """Those that are counted on."""
        there = ((name, self.since[name]) for name in names if name in self.since)
        return [name for name, since in there if name not in self._missing or now - since <= BACK]

    def again(self, now: float, names: Iterable[str]) -> list[str]:
        """Those of which it is time to say again that they are wanted."""
        found = [name for name in names if name in self.since and now - self._tried.get(name, now - AGAIN) >= AGAIN]
        self._tried.update(dict.fromkeys(found, now))
        return found

    def ordered(self, names: Iterable[str]) -> list[str]:
        """The one that was not wanted for the longest time first."""
        return sorted(names, key=lambda name: self._tried.get(name, float("-inf")))
