"""Orpheus language model: a Llama that continues a text with SNAC audio codes.

It applies the prompt template and restricts sampling to the codes that are valid at each position of a frame. Decoding
codes to audio is in `snac`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, ONE_ROW, Bool, Int64, Layout, Tensor, op, ragged, rows, stacked
from mstar.errors import LoadError
from mstar.models.orpheus.snac import CODES_PER_FRAME, END_OF_CODES
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.weights.sources import Weights
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV

CODEBOOK_SIZE = 4096
"""Codes per position of a frame."""
_SPEECH_START = 1
_SPEECH_END = 2
_HUMAN_START = 3
_HUMAN_END = 4
_AI_START = 5
_FIRST_CODE = 10
"""Index N of the tokens `<custom_token_N>` that delimit speech and turns, and of the first audio code."""


class LanguageModel(CausalLM):
    """Llama with its tokenizer.

    Only codes that are valid for their position in a frame are sampled. The published decoder drops invalid tokens, and
    code 0 with them; a trained network hardly ever predicts one.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights.network, eos_token_id=0)  # the tokenizer defines the end token
        self._weights = weights

    @functools.cached_property
    def _tokenizer(self) -> Any:
        tokenizer = self._weights.tokenizer()
        tokenizer.encode_special_tokens = True  # user text that looks like a special token stays text
        return tokenizer

    @functools.cached_property
    def _first_special_token(self) -> int:
        """Id of the first special token."""
        return self._token_id("<custom_token_0>")

    def _token_id(self, token: str) -> int:
        if (token_id := self._tokenizer.token_to_id(token)) is None:
            fix = "use a model that was trained with the Orpheus tokenizer"
            raise LoadError(f"the tokenizer of {self._weights.source} has no token {token}\n  fix: {fix}")
        return token_id

    def prepare(self) -> None:
        """Load the network and the tokenizer."""
        super().prepare()
        _ = self._first_special_token

    @op
    def prompt(self, text: str, voice: str) -> Int64[Tensor, "T"]:
        """Apply the prompt template to a text and a voice."""
        import torch

        text_ids = self._tokenizer.encode(f"{voice}: {text}").ids
        closing = [self._first_special_token + token for token in (_HUMAN_END, _AI_START, _SPEECH_START)]
        return torch.tensor(
            [self._first_special_token + _HUMAN_START, *text_ids, self._token_id("<|eot_id|>"), *closing]
        )

    @op(batch=ragged("T"), chunked=True)
    def next_token(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read tokens into the cache and sample the next code, or the end after `max_tokens` codes."""
        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        counts = [
            len(cache.sampler.generated()) + 1 if cache.sampler.prompt_length is not None else 0 for cache in caches
        ]
        samplings = [self._restrict_sampling(row, count) for row, count in zip(rows(sampling), counts, strict=True)]
        return self.decoder.next_token(tokens, caches, samplings, layout)[0]

    def _restrict_sampling(self, sampling: Sampling, code_count: int) -> Sampling:
        """Allow only codes for the next position of the frame and, after the first code, the end token."""
        first = self._first_special_token + _FIRST_CODE + code_count % CODES_PER_FRAME * CODEBOOK_SIZE
        codes = ((first, first + CODEBOOK_SIZE),) if code_count < sampling.max_tokens else ()
        end = self._first_special_token + _SPEECH_END
        return replace(sampling, allowed_ranges=(*codes, (end, end + 1)) if code_count else codes)

    @op(batch=stacked)
    def is_over(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends the speech."""
        return token[:, 0] == self._first_special_token + _SPEECH_END

    @op(batch=stacked)
    def token_to_code(self, token: Int64[Tensor, "1"]) -> Int64[Tensor, "1"]:
        """Convert a token to its code, independent of the position."""
        return ((token - self._first_special_token - _FIRST_CODE) % CODEBOOK_SIZE).where(
            token != self._first_special_token + _SPEECH_END, END_OF_CODES
        )
