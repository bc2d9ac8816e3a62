"""Clock of an observer that counts only the time in which the observer runs.

A process that watches others cannot tell their silence from its own: after a pause of the process, of its container or
of the machine, every peer looks silent for as long as the pause took. The clock advances by at most `MAX_STEP_S`
between two looks at it, so a pause shifts all deadlines that were computed from it. An observer looks at every event
and every tick, at least 4 times per second; a longer interval is a pause, or a step that took too long.

It does not tell real time: do not compare its values with those of another process.
"""

from __future__ import annotations

MAX_STEP_S = 0.25
"""Maximum seconds by which the clock advances between two looks."""


class ActiveClock:
    """Active time of one observer."""

    def __init__(self) -> None:
        self.paused_s = 0.0
        """Seconds of all pauses so far. Real time is active time plus this."""
        self._last_look_at: float | None = None

    def advance(self, now: float) -> float:
        """Look at the clock at a monotonic time; return the active time."""
        if self._last_look_at is None:
            self._last_look_at = now
        elapsed_s = now - self._last_look_at
        if elapsed_s > 0.0:  # a tick can have an earlier time than the messages before it
            self._last_look_at = now
            self.paused_s += max(0.0, elapsed_s - MAX_STEP_S)
        return now - self.paused_s
