"""Restart backoff: exponential backoff with jitter for crashing processes, without a limit on the number of attempts.

It only computes the delay. The supervisor restarts the process.

| run that ended | delay before the next start |
|---|---|
| up for at least `MIN_UPTIME_S` | 0 |
| the first short run or failed start | 0 |
| the n-th short run within `FAILURE_WINDOW_S` | 0.1 s x 2^(n - 2), at most `MAX_BACKOFF_S` |
| the n-th failed start in a row | 0.1 s x 2^(n - 2), at most `MAX_START_BACKOFF_S` |

A delay is multiplied by a random factor, so that processes that failed together do not start together again.
"""

from __future__ import annotations

import random

FAILURE_WINDOW_S = 60.0
"""Seconds after which a short run is forgotten."""
MIN_UPTIME_S = 1.0
"""Minimum uptime in seconds after which an exit does not count as a crash loop."""
INITIAL_BACKOFF_S = 0.1
"""Delay before the second restart; doubles with each short run."""
MAX_BACKOFF_S = 5.0
"""Upper limit of the delay after a short run."""
MAX_START_BACKOFF_S = 30.0
"""Upper limit of the delay after a failed start: loading weights costs CPU time."""
JITTER = 0.2
"""Maximum deviation of a delay, as a share of it."""


class RestartBackoff:
    """Exits of the process of one name. The delays depend on the times and on `rng` alone."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.failed_starts = 0
        """Number of starts in a row after which the process was never up."""
        self._rng = rng or random.Random()
        self._short_runs: list[float] = []
        self._up_since: float | None = None

    def on_up(self, now: float) -> None:
        """The process is up."""
        if self._up_since is None:
            self._up_since = now
        self.failed_starts = 0

    def on_exit(self, now: float) -> float:
        """Seconds until the restart.

        The first restart is immediate. So a process that is killed now and then restarts at once, and one in a crash
        loop does not keep a core busy.
        """
        up_since, self._up_since = self._up_since, None
        if up_since is None:
            self.failed_starts += 1
        elif now - up_since >= MIN_UPTIME_S:
            return 0.0
        self._short_runs = [*(time for time in self._short_runs if now - time < FAILURE_WINDOW_S), now]
        count = max(len(self._short_runs), self.failed_starts)
        if count == 1:
            return 0.0
        limit_s = MAX_START_BACKOFF_S if self.failed_starts else MAX_BACKOFF_S
        exponent = min(count - 2, 30)  # a float overflows after a thousand attempts
        delay_s = min(INITIAL_BACKOFF_S * 2**exponent, limit_s)
        return delay_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
