"""TextLM: a language model with its tokenizer: detokenization, stop tokens and stop strings.

Output ends before an end-of-sequence or stop token, or after a stop string of the request. Chat templates are part of
each model family.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.grammar import Vocabulary
from mstar.requests import Sampling
from mstar.walk.batching import rows, stacked
from mstar.walk.component import op
from mstar.walk.states import KV
from mstar.walk.types import Bool, Int64, Tensor, View

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV


class TextLM(CausalLM):
    """A decoder with its `tokenizers.Tokenizer`, both loaded lazily. `eos_token` is the end-of-sequence token."""

    def __init__(self, network: Callable[[], Any], *, tokenizer: Callable[[], Any], eos_token: str) -> None:
        self._load_tokenizer = tokenizer
        super().__init__(
            network,
            eos_token_id=lambda: self.tokenizer.token_to_id(eos_token),
            vocabulary=lambda: Vocabulary(lambda: self.tokenizer, [self.eos_token_id]),
        )

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The loaded tokenizer."""
        return self._load_tokenizer()

    def prepare(self) -> None:
        """Load the network, the tokenizer and the vocabulary for grammars."""
        super().prepare()
        _ = self.eos_token_id

    @op(batch=stacked)
    def is_over(self, next_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling) -> Bool[Tensor, ""]:
        """Whether the output ends before this token: a stop token, or a stop string at the end of the output."""
        import torch

        columns = zip(next_token[:, 0].tolist(), rows(kv), rows(sampling), strict=True)
        return torch.tensor([self.is_finished(*column) for column in columns])

    def is_finished(self, token: int, kv: KV, sampling: Sampling) -> bool:
        """`is_over` for one request."""
        if token in (self.eos_token_id, *sampling.stop_token_ids):
            return True
        longest = max(
            (len(text.encode()) for text in sampling.stop_strings), default=0
        )  # a token has at least one byte
        text = self.detokenize(cast("PagedKV", kv).sampler.generated()[-longest:]) if longest else ""
        return any(stop in text for stop in sampling.stop_strings)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Decode tokens into text. Special tokens are left out."""
        return self.tokenizer.decode(list(tokens))
