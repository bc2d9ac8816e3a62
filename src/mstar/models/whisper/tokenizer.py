"""Whisper tokenizer: token ids to text, special tokens, and decoding options of a request.

Reads generation_config.json and tokenizer.json of a folder in the Hugging Face layout. No library is imported until the
first detokenization. Sampling is in `whisper_asr`.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mstar.errors import LoadError, Unsupported, format_names
from mstar.nn.weights.sources import Weights
from mstar.requests import Sampling, TranscriptionRequest

MAX_TRANSCRIPT_TOKENS = 224
"""Maximum tokens per window: half of the decoder context."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of the special tokens. Text ids are below `end`; timestamps start at `timestamp_begin`, 20 ms apart."""

    end: int
    start: int
    timestamp_begin: int
    languages: Mapping[str, int] = field(default_factory=dict[str, int])
    """Token per language code. Empty for an English-only checkpoint."""
    tasks: Mapping[str, int] = field(default_factory=dict[str, int])
    suppressed: tuple[int, ...] = ()
    """Tokens that are never sampled."""
    begin_suppressed: tuple[int, ...] = ()
    max_initial_timestamp: int | None = 50
    """Maximum index of the first timestamp, or None for no limit."""

    @property
    def prompt_length(self) -> int:
        """Number of prompt tokens before the first sampled token."""
        return 3 if self.languages else 1


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """Decoding options of one transcription."""

    language: str
    """Language code, or empty to detect the language."""
    is_translation: bool
    sampling: Sampling
    has_words: bool = False
    """Compute the time range of each word."""


class WhisperTokenizer:
    """Tokenizer of a Whisper folder."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def special_tokens(self) -> SpecialTokens:
        """Special tokens from generation_config.json."""
        config = self._generation_config
        try:
            plain = config["no_timestamps_token_id"]
            return SpecialTokens(
                config["eos_token_id"],
                config["decoder_start_token_id"],
                plain + 1,
                {name.strip("<|>"): token for name, token in config.get("lang_to_id", {}).items()},
                config.get("task_to_id", {}),
                (*(config.get("suppress_tokens") or ()), plain),
                tuple(config.get("begin_suppress_tokens") or ()),
                config.get("max_initial_timestamp_index"),
            )
        except KeyError as error:
            raise LoadError(f"generation_config.json has no {error}\n  fix: use the file of Whisper") from error

    @property
    def alignment_heads(self) -> tuple[tuple[int, int], ...]:
        """Pairs of layer and head whose cross-attention follows the audio; empty if they are not published."""
        return tuple((layer, head) for layer, head in self._generation_config.get("alignment_heads") or ())

    @functools.cached_property
    def _generation_config(self) -> Mapping[str, Any]:
        file = self._weights.path("*.json") / "generation_config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: use a complete Whisper folder")
        return json.loads(file.read_bytes())

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self._weights.tokenizer()

    def save(self, folder: Path) -> None:
        """Write the files that this tokenizer is read from to another folder."""
        source = self._weights.path("*.json")
        for name in ("generation_config.json", "tokenizer.json"):
            shutil.copyfile(source / name, folder / name)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Decode token ids to text. Special tokens are skipped."""
        return self._tokenizer.decode([token for token in tokens if token < self.special_tokens.end])

    def language_code(self, language_token: Any) -> str:
        """Return the code of a language token, `en` if unknown."""
        return next(
            (code for code, token in self.special_tokens.languages.items() if token == int(language_token)), "en"
        )

    def decoding_options(self, request: TranscriptionRequest) -> DecodingOptions:
        """Convert a request. Raises Unsupported for options that the checkpoint does not have."""
        code, languages = request.language.lower().partition("-")[0], self.special_tokens.languages
        is_known = not code or code in (languages or ("en", "english"))
        if request.prompt or not is_known or (request.is_translation and not languages):
            what = f"speech in {format_names(languages)}" if languages else "English speech"
            raise Unsupported(
                f"this Whisper transcribes {what}, without a prompt\n"
                "  fix: leave out the prompt, and send a supported language and task"
            )
        code, sampling = code if languages else "en", Sampling(MAX_TRANSCRIPT_TOKENS, request.temperature)
        return DecodingOptions(code, request.is_translation, sampling, request.word_timestamps)
