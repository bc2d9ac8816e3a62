"""Refuted: why a stage of the proof failed, and what to do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from mstar.errors import MstarError


class Refuted(MstarError):
    """A stage failed. `problem` is what was observed, `fix` what usually causes it."""

    def __init__(self, problem: str, fix: str) -> None:
        self.problem, self.fix = problem, fix
        super().__init__(f"{problem}\n  fix: {fix}")


@contextmanager
def refuting(action: str, fix: str) -> Generator[None]:
    """Refute the model if its own code raises an exception."""
    try:
        yield
    except Refuted:
        raise
    except Exception as error:
        problem, _, own_fix = str(error).partition("\n  fix: ")
        raise Refuted(f"{action}: {type(error).__name__}: {problem}", own_fix or fix) from error
