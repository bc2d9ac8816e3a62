"""What an operator sees while a server starts and ends: bars on a terminal, lines elsewhere, log lines if asked for.

It only shows. How far the start is, its caller finds out.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import TaskID

log = logging.getLogger("mstar.serve")


@dataclass(frozen=True, slots=True)
class StartStage:
    """How far one part of the start is."""

    label: str
    """What is done now, or what it is when it is over; empty if nothing is known."""
    done: int
    total: int

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.done == self.total


class LineProgress:
    """A line for each thing that happens."""

    def __init__(self) -> None:
        self._seen: dict[str, StartStage] = {}

    def log_event(self, text: str, **_: Any) -> None:
        """Something has happened."""
        print(text, flush=True)

    def show(self, stages: Mapping[str, StartStage]) -> None:
        """How far some parts are."""
        for name, stage in stages.items():
            if self._seen.get(name) == stage:
                continue
            self._seen[name] = stage
            over = sum(one.is_done for one in self._seen.values())
            if stage.label:
                text = f"{name} is {stage.label}" if stage.is_done else f"{name}: {stage.label}"
                self.log_event(f"[{over}/{len({**self._seen, **stages})}] {text}", part=name)

    def close(self) -> None:
        """The start is over."""


class LogProgress(LineProgress):
    """A log line for each thing that happens."""

    def log_event(self, text: str, **fields: Any) -> None:
        """Something has happened."""
        log.info("%s", text, extra={"fields": fields})


class BarProgress(LineProgress):
    """A bar for each process, until the start is over."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__()
        columns = (TextColumn("{task.fields[process]:<16}"), BarColumn(24), TimeElapsedColumn())
        self._bars = Progress(*columns, TextColumn("{task.description}"))
        self._tasks: dict[str, TaskID] = {}
        self._bars.start()

    def log_event(self, text: str, **_: Any) -> None:
        """Something has happened."""
        self._bars.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, stages: Mapping[str, StartStage]) -> None:
        """How far some parts are."""
        for name, stage in stages.items():
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task("", process=name, total=None)
            self._bars.update(
                self._tasks[name], completed=stage.done, total=stage.total, description=stage.label or "starting"
            )

    def close(self) -> None:
        """The start is over."""
        self._bars.stop()


def make_progress(log_format: str) -> LineProgress:
    """What suits where stdout goes."""
    if log_format == "json":
        return LogProgress()
    return BarProgress() if sys.stdout.isatty() else LineProgress()
