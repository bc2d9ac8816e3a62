"""Watchdog of batches: names an op that runs for long, while it runs. It costs nothing per call."""

from __future__ import annotations

import logging
from dataclasses import dataclass

log = logging.getLogger("mstar.worker")

LONG_BATCH_S = 10.0
"""Seconds after which a running batch is logged. The time doubles with each line about the same batch."""
LONG_BATCH_FACTOR = 10.0
"""A batch of an op that usually takes long is logged after this many times its expected duration."""


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """The batch that the engine runs."""

    number: int
    model: str
    component: str
    op: str
    seconds: float
    """Time for which it has run, without its wait behind another batch."""
    expected_s: float
    """Predicted duration; 0 if unknown."""
    rids: tuple[str, ...]


class BatchWatchdog:
    """Logs long batches of one worker."""

    def __init__(self) -> None:
        self._number = -1
        self._next_line_s = 0.0

    def check(self, running: RunningBatch | None) -> None:
        """Log the running batch if it is time to."""
        if running is None:
            return
        if running.number != self._number:
            self._number = running.number
            self._next_line_s = max(LONG_BATCH_S, LONG_BATCH_FACTOR * running.expected_s)
        if running.seconds < self._next_line_s:
            return
        self._next_line_s = 2 * running.seconds
        name = f"{running.component}.{running.op}"
        fields = {"model": running.model, "op": name, "seconds": round(running.seconds, 1), "rids": [*running.rids]}
        log.warning("op %s has run for %.0f s", name, running.seconds, extra={"fields": fields})
