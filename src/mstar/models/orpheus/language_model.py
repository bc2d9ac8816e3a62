"""The language model of Orpheus: a Llama that was taught to go on with a text in the codes of SNAC.

It knows how texts are put to it and which of its tokens are codes. What codes sound like it does not know.
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
"""So many codes there are for each place of a frame."""
_SPEECH_START, _SPEECH_END, _HUMAN_START, _HUMAN_END, _AI_START, _FIRST_CODE = 1, 2, 3, 4, 5, 10
"""The tokens `<custom_token_N>` that begin and end speech and turns, and the first that is a code."""


class LanguageModel(CausalLM):
    """The network and its tokenizer.

    A token that is no code for its place in a frame is never chosen. The published decoder drops such tokens, and with
    them code 0; a network that was taught well hardly ever wants one.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights.network, eos_token_id=0)  # which token that is, the tokenizer says
        self._weights = weights

    @functools.cached_property
    def _tokenizer(self) -> Any:
        made = self._weights.tokenizer()
        made.encode_special_tokens = True  # what a user writes is text, whatever it looks like
        return made

    @functools.cached_property
    def _first_special_token(self) -> int:
        """The first of the tokens that are no text."""
        return self._token_id("<custom_token_0>")

    def _token_id(self, token: str) -> int:
        if (number := self._tokenizer.token_to_id(token)) is None:
            fix = "give the folder of a model that was trained as Orpheus was"
            raise LoadError(f"the tokenizer of {self._weights.source} has no {token}\n  fix: {fix}")
        return number

    def prepare(self) -> None:
        """Load the network and the tokenizer."""
        super().prepare()
        _ = self._first_special_token

    @op
    def prompt(self, text: str, voice: str) -> Int64[Tensor, "T"]:
        """A text in a voice as tokens, up to where its speech begins."""
        import torch

        said = self._tokenizer.encode(f"{voice}: {text}").ids
        closing = [self._first_special_token + one for one in (_HUMAN_END, _AI_START, _SPEECH_START)]
        return torch.tensor([self._first_special_token + _HUMAN_START, *said, self._token_id("<|eot_id|>"), *closing])

    @op(batch=ragged("T"), chunked=True)
    def next_token(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read tokens into the cache; the code that follows them, or the end. After `max_tokens` codes it ends."""
        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        written = [len(one.sampler.generated()) + 1 if one.sampler.has_started else 0 for one in caches]
        wishes = [self._restrict_sampling(wish, number) for wish, number in zip(rows(sampling), written, strict=True)]
        return self.decoder.next_token(tokens, caches, wishes, layout)[0]

    def _restrict_sampling(self, sampling: Sampling, code_count: int) -> Sampling:
        """A wish for what may follow so many codes: one for the next place, and after the first also the end."""
        first = self._first_special_token + _FIRST_CODE + code_count % CODES_PER_FRAME * CODEBOOK_SIZE
        codes = ((first, first + CODEBOOK_SIZE),) if code_count < sampling.max_tokens else ()
        over = self._first_special_token + _SPEECH_END
        return replace(sampling, allowed_ranges=(*codes, (over, over + 1)) if code_count else codes)

    @op(batch=stacked)
    def is_over(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends the speech."""
        return token[:, 0] == self._first_special_token + _SPEECH_END

    @op(batch=stacked)
    def token_to_code(self, token: Int64[Tensor, "1"]) -> Int64[Tensor, "1"]:
        """The code that a token stands for, whatever its place."""
        return ((token - self._first_special_token - _FIRST_CODE) % CODEBOOK_SIZE).where(
            token != self._first_special_token + _SPEECH_END, END_OF_CODES
        )
