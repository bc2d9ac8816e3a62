"""Restarts: when a process that died is started again, and when that is given up.

It only counts. Whoever asks starts the process, or tells the operator that it stays down.
"""

from __future__ import annotations

FAILURE_WINDOW_S = 60.0
"""Deaths longer ago than this are forgotten."""
MIN_UPTIME_S = 1.0
"""A process that was up for less than this has a short life; a longer one owes nothing."""
INITIAL_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
MAX_START_FAILURES = 5


class RestartBackoff:
    """The deaths of one name."""

    def __init__(self) -> None:
        self._short_runs: list[float] = []
        self._start_failures: list[float] = []
        self._up_since: float | None = None

    def on_up(self, now: float) -> None:
        """It has started, and says so."""
        self._up_since = now
        self._start_failures.clear()

    def on_exit(self, now: float) -> float | None:
        """Seconds until it may be started again; None if it died at every start and is given up.

        The first time it is started again at once. Then each short life doubles the wait; so a process that is killed
        now and then comes back at once, and one that dies of itself does not keep a core busy with starting.
        """
        if self._up_since is None:
            self._start_failures = [*_within_window(self._start_failures, now), now]
            if len(self._start_failures) >= MAX_START_FAILURES:
                return None
        is_short = self._up_since is None or now - self._up_since < MIN_UPTIME_S
        self._up_since = None
        if not is_short:
            return 0.0
        self._short_runs = [*_within_window(self._short_runs, now), now]
        return (
            0.0
            if len(self._short_runs) == 1
            else min(INITIAL_BACKOFF_S * 2 ** (len(self._short_runs) - 2), MAX_BACKOFF_S)
        )


def _within_window(deaths: list[float], now: float) -> list[float]:
    return [death for death in deaths if now - death < FAILURE_WINDOW_S]
