"""Tokens as text while they come: only what no later token can change, and nothing from a stop string on.

How tokens are spelled is the model's business. Whether an answer goes on after a stop is its reader's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from mstar.requests import ScoredToken

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""How bytes are spelled that are no character, or not yet."""
_MAX_PARTIAL_BYTES = 3
"""How many bytes of a character can be there without it being complete."""
_CONTEXT_TOKENS = 8
"""So many tokens are spelled again with those that follow: a token may be spelled otherwise where a text begins."""


class IncrementalDetokenizer:
    """The text of one answer as it grows."""

    def __init__(self, detokenize: Callable[[Sequence[int]], str], stop_strings: Sequence[str] = ()) -> None:
        self.token_count = 0
        """How many tokens have come; none of an answer that comes as text."""
        self.has_text = False
        """Whether some of it has come as text."""
        self.is_stopped = False
        """Whether a stop string has come."""
        self._detokenize = detokenize
        self._stop_strings = stop_strings
        self._context: list[int] = []
        self._new: list[int] = []
        self._emitted_chars = 0
        """How many characters of context and fresh tokens, spelled together, were let out."""
        self._pending_text: str = ""
        """Text that may be the beginning of a stop string."""

    def add(self, value: Any) -> str:
        """Take what a Text emission holds, tokens or a string; the text that is certain now."""
        if isinstance(value, str):
            self.has_text = True
            return self._release(value)
        numbers = to_token_ids(value)
        self.token_count += len(numbers)
        self._new += numbers
        text = self._detokenize([*self._context, *self._new])
        broken = min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_PARTIAL_BYTES)
        fresh = text[self._emitted_chars : len(text) - broken]
        self._emitted_chars = len(text) - broken
        if len(self._new) >= _CONTEXT_TOKENS:
            self._context, self._new = self._new, []
            self._emitted_chars = len(self._detokenize(self._context)) - broken
        return self._release(fresh)

    def finish(self) -> str:
        """The text that was held back, now that no more comes."""
        text = self._detokenize([*self._context, *self._new]) if self.token_count else ""
        last = self._release(text[self._emitted_chars :])
        held, self._pending_text = self._pending_text, ""
        return last + held

    def _release(self, text: str) -> str:
        """Text up to the first stop string, without what may be the beginning of one."""
        if self.is_stopped:
            return ""
        text = self._pending_text + text
        ends = [at for stop in self._stop_strings if (at := text.find(stop)) >= 0]
        if ends:
            self.is_stopped, self._pending_text = True, ""
            return text[: min(ends)]
        kept = max((_overlap(text, stop) for stop in self._stop_strings), default=0)
        self._pending_text = text[len(text) - kept :]
        return text[: len(text) - kept]


def to_token_ids(value: Any) -> list[int]:
    """Token numbers, whatever holds them: a number, an array of any library, a list, or what says how likely it was."""
    if isinstance(value, ScoredToken):
        return [value.token]
    plain = value.tolist() if hasattr(value, "tolist") else value
    return [int(one) for one in cast("list[Any]", plain)] if isinstance(plain, list | tuple) else [int(plain)]


def token_to_bytes(model: Any, token: int) -> bytes | None:
    """What a token stands for: what the model says, if it has a method for that; None if it is no text by itself."""
    if (told := getattr(model, "token_to_bytes", None)) is not None:
        return told(token)
    text = model.detokenize([token])
    return None if _REPLACEMENT in text else text.encode()


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
