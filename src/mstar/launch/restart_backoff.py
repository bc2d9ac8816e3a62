"""Restart backoff: exponential backoff (no jitter) for crashing processes, with a limit on failed starts.

It only computes the delay. The supervisor restarts the process or reports that it stays down.
"""

from __future__ import annotations

FAILURE_WINDOW_S = 60.0
"""Seconds after which an exit is forgotten."""
MIN_UPTIME_S = 1.0
"""Minimum uptime in seconds after which an exit does not count as a crash loop."""
INITIAL_BACKOFF_S = 0.1
"""Delay before the second restart; doubles with each short run."""
MAX_BACKOFF_S = 5.0
"""Upper limit of the delay."""
MAX_START_FAILURES = 5
"""Maximum number of consecutive failed starts before a process stays down."""


class RestartBackoff:
    """Exits of the process of one name."""

    def __init__(self) -> None:
        self._short_runs: list[float] = []
        self._start_failures: list[float] = []
        self._up_since: float | None = None

    def on_up(self, now: float) -> None:
        """The process is up."""
        self._up_since = now
        self._start_failures.clear()

    def on_exit(self, now: float) -> float | None:
        """Seconds until the restart; None if the limit of failed starts is reached.

        The first restart is immediate; each further run shorter than MIN_UPTIME_S doubles the delay. So a process that
        is killed now and then restarts at once, and one in a crash loop does not keep a core busy.
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


def _within_window(times: list[float], now: float) -> list[float]:
    return [time for time in times if now - time < FAILURE_WINDOW_S]
