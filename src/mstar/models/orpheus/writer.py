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
from mstar.models.orpheus.snac import END, PLACES
from mstar.nn.causal_lm import CausalLM
from mstar.nn.sampling import Sampling
from mstar.nn.weights import Weights

if TYPE_CHECKING:
    from mstar.nn.store import PagedKV

CODES = 4096
"""So many codes there are for each place of a frame."""
_SPEECH, _OVER, _HUMAN, _HUMAN_OVER, _MACHINE, _FIRST = 1, 2, 3, 4, 5, 10
"""The tokens `<custom_token_N>` that begin and end speech and turns, and the first that is a code."""


class Writer(CausalLM):
    """The network and its tokenizer.

    A token that is no code for its place in a frame is never chosen. The published decoder drops such tokens, and with
    them code 0; a network that was taught well hardly ever wants one.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights.network, end=0)  # which token that is, the tokenizer says
        self._weights = weights

    @functools.cached_property
    def _tokenizer(self) -> Any:
        made = self._weights.tokenizer()
        made.encode_special_tokens = True  # what a user writes is text, whatever it looks like
        return made

    @functools.cached_property
    def _special(self) -> int:
        """The first of the tokens that are no text."""
        return self._number("<custom_token_0>")

    def _number(self, token: str) -> int:
        if (number := self._tokenizer.token_to_id(token)) is None:
            fix = "give the folder of a model that was trained as Orpheus was"
            raise LoadError(f"the tokenizer of {self._weights.source} has no {token}\n  fix: {fix}")
        return number

    def prepare(self) -> None:
        """Load the network and the tokenizer."""
        super().prepare()
        _ = self._special

    @op
    def prompt(self, text: str, voice: str) -> Int64[Tensor, "T"]:
        """A text in a voice as tokens, up to where its speech begins."""
        import torch

        said = self._tokenizer.encode(f"{voice}: {text}").ids
        closing = [self._special + one for one in (_HUMAN_OVER, _MACHINE, _SPEECH)]
        return torch.tensor([self._special + _HUMAN, *said, self._number("<|eot_id|>"), *closing])

    @op(batch=ragged("T"), in_pieces=True)
    def next(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read tokens into the cache; the code that follows them, or the end. After `max_tokens` codes it ends."""
        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        written = [len(one.chooser.written()) + 1 if one.chooser.has_begun else 0 for one in caches]
        wishes = [self._placed(wish, number) for wish, number in zip(rows(sampling), written, strict=True)]
        return self.decoder.next(tokens, caches, wishes, layout)[0]

    def _placed(self, wish: Sampling, written: int) -> Sampling:
        """A wish for what may follow so many codes: one for the next place, and after the first also the end."""
        first = self._special + _FIRST + written % PLACES * CODES
        codes = ((first, first + CODES),) if written < wish.max_tokens else ()
        over = self._special + _OVER
        return replace(wish, among=(*codes, (over, over + 1)) if written else codes)

    @op(batch=stacked)
    def is_over(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends the speech."""
        return token[:, 0] == self._special + _OVER

    @op(batch=stacked)
    def code(self, token: Int64[Tensor, "1"]) -> Int64[Tensor, "1"]:
        """The code that a token stands for, whatever its place."""
        return ((token - self._special - _FIRST) % CODES).where(token != self._special + _OVER, END)
