"""Proof: the stages of a model in their order, and their results."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mstar.cli.prove import local_stages, process_stages
from mstar.cli.prove.process_stages import Speed
from mstar.cli.prove.refuted import Refuted
from mstar.cli.prove.subject import Subject

MAX_DETAIL_CHARS = 400
"""Maximum characters of a problem: it can contain arrays."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """Result of one stage."""

    name: str
    state: str
    """ok, failed, or skipped because an earlier stage failed."""
    seconds: float
    detail: str
    """What was shown, or the problem."""
    fix: str = ""


class Proof:
    """All stages for one subject. Stages in processes are skipped after a failure in this one."""

    def __init__(self, subject: Subject, schedules: int) -> None:
        self.subject = subject
        self.results: list[StageResult] = []
        self.speed: Speed | None = None
        self._local: dict[str, Callable[[], str]] = {
            "walks": lambda: local_stages.check_walks(subject),
            "repeats": lambda: local_stages.check_repeats(subject),
            "reference": lambda: local_stages.check_reference(subject),
            "schedules": lambda: local_stages.check_schedules(subject, schedules),
            "batches": lambda: local_stages.check_batches(subject, schedules),
            "states": lambda: local_stages.check_states_freed(subject),
        }
        self._served: dict[str, Callable[[], str]] = {
            "placements": lambda: process_stages.check_placements(subject),
            "crashes": lambda: process_stages.check_crashes(subject),
            "disconnects": lambda: process_stages.check_disconnects(subject),
            "speed": self._measure_speed,
        }

    @property
    def is_proven(self) -> bool:
        """Whether every stage has passed."""
        return bool(self.results) and all(result.state == "ok" for result in self.results)

    def run(self) -> Iterator[StageResult]:
        """Run the stages, and yield each result."""
        for stages in (self._local, self._served):
            has_failed = any(result.state == "failed" for result in self.results)
            for name, check in stages.items():
                result = (
                    StageResult(name, "skipped", 0.0, "an earlier stage failed") if has_failed else _run(name, check)
                )
                self.results.append(result)
                yield result

    def as_json(self) -> dict[str, Any]:
        """The results, for programs."""
        stages = [asdict(result) for result in self.results]
        return {"model": self.subject.target, "proven": self.is_proven, "stages": stages}

    def _measure_speed(self) -> str:
        self.speed = speed = process_stages.measure_speed(self.subject)
        return f"{speed.requests_per_second:.1f} requests/s, first output {speed.first_output_ms:.1f} ms"


def _run(name: str, check: Callable[[], str]) -> StageResult:
    started_at = time.perf_counter()
    try:
        detail, fix, state = check(), "", "ok"
    except Refuted as refuted:
        detail, fix, state = (
            textwrap.shorten(refuted.problem, MAX_DETAIL_CHARS, placeholder=" ..."),
            refuted.fix,
            "failed",
        )
    return StageResult(name, state, round(time.perf_counter() - started_at, 1), detail, fix)
