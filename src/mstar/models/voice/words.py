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

from mstar.asks import Transcription
from mstar.errors import LoadError, Unsupported, listed
from mstar.nn.sampling import Sampling
from mstar.nn.weights import Weights

MOST = 224
"""So many tokens are written of what is heard at once: half of what the network can see."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Tokens that are no text. All text is before `end`, all moments are from `zero` on, 20 ms apart."""

    end: int
    begin: int
    zero: int
    languages: Mapping[str, int] = field(default_factory=dict[str, int])
    """By their codes; none, if all it hears is English."""
    tasks: Mapping[str, int] = field(default_factory=dict[str, int])
    never: tuple[int, ...] = ()
    """Those that are never chosen."""
    not_first: tuple[int, ...] = ()
    latest_first: int | None = 50
    """So many moments after zero the first words may begin."""

    @property
    def asked(self) -> int:
        """How many tokens say what is wanted, before the first that is chosen."""
        return 3 if self.languages else 1


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be written of a sound."""

    code: str
    """Of the language that is spoken; empty, if that is to be found."""
    translates: bool
    sampling: Sampling


class Words:
    """What a folder says of its words."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def marks(self) -> Marks:
        """Its tokens that are no text."""
        file = self._weights.path("*.json") / "generation_config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: give the folder of a Whisper, with all its files")
        said = json.loads(file.read_bytes())
        try:
            plain = said["no_timestamps_token_id"]
            return Marks(
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

    def spell(self, tokens: Sequence[int]) -> str:
        """Tokens as text. Those that are none are left out."""
        return self._tokenizer.decode([token for token in tokens if token < self.marks.end])

    def code(self, language: Any) -> str:
        """The code of the language that a token stands for."""
        return next((code for code, token in self.marks.languages.items() if token == int(language)), "en")

    def wish(self, request: Transcription) -> Wish:
        """What a request wishes. Raises Unsupported for what cannot be done."""
        code, languages = request.language.lower().partition("-")[0], self.marks.languages
        is_known = not code or code in (languages or ("en", "english"))
        if request.prompt or not is_known or (request.translates and not languages):
            what = f"it writes speech in {listed(languages)} down" if languages else "it writes English speech down"
            raise Unsupported(f"{what}, without a prompt\n  fix: ask for nothing else")
        return Wish(code if languages else "en", request.translates, Sampling(MOST, request.temperature))
