"""Startup progress of a server: progress bars on a terminal, plain lines in a pipe, or JSON log lines.

It only displays. The caller collects the progress.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import TaskID

log = logging.getLogger("mstar.serve")


@dataclass(frozen=True, slots=True)
class StartStage:
    """Progress of one process during startup."""

    label: str
    """Current activity, or the final state. Empty: unknown."""
    done: int
    total: int

    @property
    def is_done(self) -> bool:
        """Whether this process has started."""
        return self.done == self.total


class LineProgress:
    """Prints one line per event."""

    def __init__(self) -> None:
        self._seen: dict[str, StartStage] = {}

    def log_event(self, text: str, **_: Any) -> None:
        """Report an event. Structured fields go to the JSON log only."""
        with suppress(OSError):  # a full disk must not stop the server
            print(text, flush=True)

    def show(self, stages: Mapping[str, StartStage]) -> None:
        """Show the progress of some processes."""
        for name, stage in stages.items():
            if self._seen.get(name) == stage:
                continue
            self._seen[name] = stage
            done = sum(known.is_done for known in self._seen.values())
            if stage.label:
                text = f"{name} is {stage.label}" if stage.is_done else f"{name}: {stage.label}"
                self.log_event(f"[{done}/{len({**self._seen, **stages})}] {text}", part=name)

    def close(self) -> None:
        """End the display: startup has finished or failed."""


class LogProgress(LineProgress):
    """Writes one JSON log line per event."""

    def log_event(self, text: str, **fields: Any) -> None:
        """Report an event. Structured fields go to the JSON log only."""
        log.info("%s", text, extra={"fields": fields})


class BarProgress(LineProgress):
    """Shows a progress bar per process until startup ends."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__()
        columns = (TextColumn("{task.fields[process]:<16}"), BarColumn(24), TimeElapsedColumn())
        self._bars = Progress(*columns, TextColumn("{task.description}"))
        self._tasks: dict[str, TaskID] = {}
        self._bars.start()

    def log_event(self, text: str, **_: Any) -> None:
        """Report an event. Structured fields go to the JSON log only."""
        self._bars.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, stages: Mapping[str, StartStage]) -> None:
        """Show the progress of some processes."""
        for name, stage in stages.items():
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task("", process=name, total=None)
            self._bars.update(
                self._tasks[name], completed=stage.done, total=stage.total, description=stage.label or "starting"
            )

    def close(self) -> None:
        """End the display: startup has finished or failed."""
        self._bars.stop()


def make_progress(log_format: str) -> LineProgress:
    """Choose by log format and by whether stdout is a terminal."""
    if log_format == "json":
        return LogProgress()
    return BarProgress() if sys.stdout.isatty() else LineProgress()
