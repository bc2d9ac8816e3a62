"""Guess: the decode step that was launched ahead for a KV cache, before the walk has fed back its token."""

from __future__ import annotations

from typing import Protocol


class GuessedStep(Protocol):
    """A step that was launched ahead (`mstar.nn.lm.device_steps.run_ahead`)."""

    def release(self, row: int) -> None:
        """Release what the step holds for a row."""
        ...


class Guess:
    """The row of a step that a cache has, if it has one."""

    def __init__(self) -> None:
        self.step: GuessedStep | None = None
        self.row = 0

    def drop(self) -> None:
        """Drop the guess, if there is one: it was wrong, or the cache changes in another way."""
        step, self.step = self.step, None
        if step is not None:
            step.release(self.row)
