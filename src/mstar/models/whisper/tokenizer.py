"""The words of a Whisper: text of tokens, and the tokens that are no text.

A folder in the layout of its hub is read: generation_config.json and tokenizer.json. Needs no library until tokens are
spelled. What is chosen, and when, is not decided here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mstar.errors import LoadError, Unsupported, format_names
from mstar.nn.weights.sources import Weights
from mstar.requests import Sampling, TranscriptionRequest

MAX_TRANSCRIPT_TOKENS = 224
"""So many tokens are written of what is heard at once: half of what the network can see."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Tokens that are no text. All text is before `end`, all moments are from `zero` on, 20 ms apart."""

    end: int
    start: int
    timestamp_begin: int
    languages: Mapping[str, int] = field(default_factory=dict[str, int])
    """By their codes; none, if all it hears is English."""
    tasks: Mapping[str, int] = field(default_factory=dict[str, int])
    suppressed: tuple[int, ...] = ()
    """Those that are never chosen."""
    begin_suppressed: tuple[int, ...] = ()
    max_initial_timestamp: int | None = 50
    """So many moments after zero the first words may begin."""

    @property
    def prompt_length(self) -> int:
        """How many tokens say what is wanted, before the first that is chosen."""
        return 3 if self.languages else 1


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """What is to be written of a sound."""

    language: str
    """Of the language that is spoken; empty, if that is to be found."""
    is_translation: bool
    sampling: Sampling


class WhisperTokenizer:
    """What a folder says of its words."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def special_tokens(self) -> SpecialTokens:
        """Its tokens that are no text."""
        file = self._weights.path("*.json") / "generation_config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: give the folder of a Whisper, with all its files")
        said = json.loads(file.read_bytes())
        try:
            plain = said["no_timestamps_token_id"]
            return SpecialTokens(
                said["eos_token_id"],
                said["decoder_start_token_id"],
                plain + 1,
                {name.strip("<|>"): token for name, token in said.get("lang_to_id", {}).items()},
                said.get("task_to_id", {}),
                (*(said.get("suppress_tokens") or ()), plain),
                tuple(said.get("begin_suppress_tokens") or ()),
                said.get("max_initial_timestamp_index"),
            )
        except KeyError as error:
            raise LoadError(f"{file} does not say its {error}\n  fix: give the one that Whisper has") from error

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self._weights.tokenizer()

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Tokens as text. Those that are none are left out."""
        return self._tokenizer.decode([token for token in tokens if token < self.special_tokens.end])

    def language_code(self, language_token: Any) -> str:
        """The code of the language that a token stands for."""
        return next(
            (code for code, token in self.special_tokens.languages.items() if token == int(language_token)), "en"
        )

    def decoding_options(self, request: TranscriptionRequest) -> DecodingOptions:
        """What a request wishes. Raises Unsupported for what cannot be done."""
        code, languages = request.language.lower().partition("-")[0], self.special_tokens.languages
        is_known = not code or code in (languages or ("en", "english"))
        if request.prompt or not is_known or (request.is_translation and not languages):
            what = (
                f"it writes speech in {format_names(languages)} down" if languages else "it writes English speech down"
            )
            raise Unsupported(f"{what}, without a prompt\n  fix: ask for nothing else")
        return DecodingOptions(
            code if languages else "en", request.is_translation, Sampling(MAX_TRANSCRIPT_TOKENS, request.temperature)
        )
