"""Tokens as text while they come: only what no later token can change, and nothing from a stop string on.

How tokens are spelled is the model's business. Whether an answer goes on after a stop is its reader's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from mstar.nn.sampling import Scored

_BROKEN = "\N{REPLACEMENT CHARACTER}"
"""How bytes are spelled that are no character, or not yet."""
_PARTS = 3
"""How many bytes of a character can be there without it being complete."""
_CONTEXT = 8
"""So many tokens are spelled again with those that follow: a token may be spelled otherwise where a text begins."""


class Spelling:
    """The text of one answer as it grows."""

    def __init__(self, spell: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self.tokens = 0
        """How many tokens have come; none of an answer that comes as text."""
        self.has_strings = False
        """Whether some of it has come as text."""
        self.is_stopped = False
        """Whether a stop string has come."""
        self._spell = spell
        self._stops = stops
        self._context: list[int] = []
        self._fresh: list[int] = []
        self._shown = 0
        """How many characters of context and fresh tokens, spelled together, were let out."""
        self._held: str = ""
        """Text that may be the beginning of a stop string."""

    def add(self, value: Any) -> str:
        """Take what a Text emission holds, tokens or a string; the text that is certain now."""
        if isinstance(value, str):
            self.has_strings = True
            return self._let_out(value)
        numbers = tokens_of(value)
        self.tokens += len(numbers)
        self._fresh += numbers
        text = self._spell([*self._context, *self._fresh])
        broken = min(len(text) - len(text.rstrip(_BROKEN)), _PARTS)
        fresh = text[self._shown : len(text) - broken]
        self._shown = len(text) - broken
        if len(self._fresh) >= _CONTEXT:
            self._context, self._fresh = self._fresh, []
            self._shown = len(self._spell(self._context)) - broken
        return self._let_out(fresh)

    def finish(self) -> str:
        """The text that was held back, now that no more comes."""
        text = self._spell([*self._context, *self._fresh]) if self.tokens else ""
        last = self._let_out(text[self._shown :])
        held, self._held = self._held, ""
        return last + held

    def _let_out(self, text: str) -> str:
        """Text up to the first stop string, without what may be the beginning of one."""
        if self.is_stopped:
            return ""
        text = self._held + text
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.is_stopped, self._held = True, ""
            return text[: min(ends)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def tokens_of(value: Any) -> list[int]:
    """Token numbers, whatever holds them: a number, an array of any library, a list, or what says how likely it was."""
    if isinstance(value, Scored):
        return [value.token]
    plain = value.tolist() if hasattr(value, "tolist") else value
    return [int(one) for one in cast("list[Any]", plain)] if isinstance(plain, list | tuple) else [int(plain)]


def token_bytes(model: Any, token: int) -> bytes | None:
    """What a token stands for: what the model says, if it has a method for that; None if it is no text by itself."""
    if (told := getattr(model, "token_bytes", None)) is not None:
        return told(token)
    text = model.spell([token])
    return None if _BROKEN in text else text.encode()


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
