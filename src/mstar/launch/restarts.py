"""Restarts: when a process that died is started again, and when that is given up.

It only counts. Whoever asks starts the process, or tells the operator that it stays down.
"""

from __future__ import annotations

SPAN_S = 60.0
"""Deaths longer ago than this are forgotten."""
SHORT_S = 1.0
"""A process that was up for less than this has a short life; a longer one owes nothing."""
FIRST_S, LONGEST_S = 0.1, 5.0
MOST_AT_START = 5


class Restarts:
    """The deaths of one name."""

    def __init__(self) -> None:
        self._short: list[float] = []
        self._at_start: list[float] = []
        self._up: float | None = None

    def up(self, now: float) -> None:
        """It has started, and says so."""
        self._up = now
        self._at_start.clear()

    def died(self, now: float) -> float | None:
        """Seconds until it may be started again; None if it died at every start and is given up.

        The first time it is started again at once. Then each short life doubles the wait; so a process that is killed
        now and then comes back at once, and one that dies of itself does not keep a core busy with starting.
        """
        if self._up is None:
            self._at_start = [*_recent(self._at_start, now), now]
            if len(self._at_start) >= MOST_AT_START:
                return None
        is_short = self._up is None or now - self._up < SHORT_S
        self._up = None
        if not is_short:
            return 0.0
        self._short = [*_recent(self._short, now), now]
        return 0.0 if len(self._short) == 1 else min(FIRST_S * 2 ** (len(self._short) - 2), LONGEST_S)


def _recent(deaths: list[float], now: float) -> list[float]:
    return [death for death in deaths if now - death < SPAN_S]
