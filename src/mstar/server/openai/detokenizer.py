"""Incremental detokenizer with stop strings: turns streamed token ids into text.

Text is released once no later token can change it (a UTF-8 character split over tokens, the start of a stop string),
and nothing from a stop string on. The model maps ids to text; the caller ends the request after a stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from mstar.requests import ScoredToken

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a model's `detokenize` returns for bytes that are not a complete UTF-8 character."""
_SEQUENCES: Any = (list, tuple)  # Any: the items of a list of no known type are then not unknown to pyright
_MAX_PARTIAL_BYTES = 3
"""Maximum bytes of an incomplete UTF-8 character."""
_CONTEXT_TOKENS = 8
"""Tokens decoded again as context for new ones: the text of a token can differ at the start of a sequence."""


class IncrementalDetokenizer:
    """Detokenizer state of one response."""

    def __init__(self, detokenize: Callable[[Sequence[int]], str], stop_strings: Sequence[str] = ()) -> None:
        self.token_count = 0
        """Tokens added so far; strings do not count."""
        self.has_text = False
        """Whether the model emitted strings instead of tokens."""
        self.is_stopped = False
        """Whether a stop string was matched; no text is released after it."""
        self.stop_string = ""
        """The stop string that was matched."""
        self._detokenize = detokenize
        self._stop_strings = stop_strings
        self._context: list[int] = []
        self._new: list[int] = []
        self._emitted_chars = 0
        """Released characters of the text of `_context + _new`."""
        self._pending_text: str = ""
        """Text held back because it can be the start of a stop string."""

    def add(self, value: Any) -> str:
        """Add the value of a Text emission, tokens or a string; return the text that is final now."""
        if isinstance(value, str):
            self.has_text = True
            return self._release(value) if self._stop_strings else value
        token_ids = to_token_ids(value)
        self.token_count += len(token_ids)
        self._new += token_ids
        text = self._detokenize([*self._context, *self._new])
        incomplete, end = 0, len(text)
        if text.endswith(_REPLACEMENT):
            incomplete = min(end - len(text.rstrip(_REPLACEMENT)), _MAX_PARTIAL_BYTES)
            end -= incomplete
        new_text, self._emitted_chars = text[self._emitted_chars : end], end
        if len(self._new) >= _CONTEXT_TOKENS:
            self._context, self._new = self._new, []
            self._emitted_chars = len(self._detokenize(self._context)) - incomplete
        return self._release(new_text) if self._stop_strings else new_text

    def finish(self, stop_string: str = "") -> str:
        """Return the text that was held back; no more tokens follow.

        `stop_string` is the one at which the model stopped itself, without the last token of it.
        """
        text = self._detokenize([*self._context, *self._new]) if self.token_count else ""
        last = self._release(text[self._emitted_chars :])
        pending, self._pending_text = self._pending_text, ""
        begun = overlap(pending, stop_string)
        return last + pending[: len(pending) - begun]

    def _release(self, text: str) -> str:
        """Text up to the first stop string, without a tail that can be the start of one."""
        if self.is_stopped:
            return ""
        text = self._pending_text + text
        stops = [(start, stop) for stop in self._stop_strings if (start := text.find(stop)) >= 0]
        if stops:
            start, self.stop_string = min(stops)
            self.is_stopped, self._pending_text = True, ""
            return text[:start]
        end = len(text) - max((overlap(text, stop) for stop in self._stop_strings), default=0)
        self._pending_text = text[end:]
        return text[:end]


def to_token_ids(value: Any) -> list[int]:
    """Token ids of a Text emission: an int, a list, an array of any library, or a `ScoredToken`."""
    if type(value) is int:
        return [value]
    if type(value) is ScoredToken:
        return [value.token]
    to_list = getattr(value, "tolist", None)
    plain: Any = value if to_list is None else to_list()
    return [*map(int, plain)] if isinstance(plain, _SEQUENCES) else [int(plain)]


def count_tokens(value: Any) -> int:
    """Number of tokens of a Text emission that is no string."""
    shape = getattr(value, "shape", None)
    if shape == (1,):  # most are
        return 1
    return len(to_token_ids(value)) if shape is None else prod(shape)


def token_to_bytes(model: Any, token: int) -> bytes | None:
    """UTF-8 bytes of one token, from the model's `token_to_bytes()` if it has one. None if they are unknown."""
    if (convert := getattr(model, "token_to_bytes", None)) is not None:
        return convert(token)
    text = model.detokenize([token])
    return None if _REPLACEMENT in text else text.encode()


def overlap(text: str, stop: str) -> int:
    """Length of the longest tail of `text` that is a proper prefix of `stop`."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
