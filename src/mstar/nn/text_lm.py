"""TextLM: a language model whose tokens are words. It spells them, and says where a text ends.

A text ends before a token that says so, or behind one of the stop texts that a request wishes for. How a conversation
is put in tokens is for each family to say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar.nn.causal_lm import CausalLM
from mstar.nn.grammar import Vocabulary
from mstar.nn.sampling import Sampling
from mstar.walk.batching import rows, stacked
from mstar.walk.component import op
from mstar.walk.states import KV
from mstar.walk.types import Bool, Int64, Tensor, View

if TYPE_CHECKING:
    from mstar.nn.store import PagedKV


class TextLM(CausalLM):
    """A decoder and its `tokenizers.Tokenizer`, both loaded where an op first runs. `end` is the name of a token."""

    def __init__(self, network: Callable[[], Any], *, tokenizer: Callable[[], Any], end: str) -> None:
        self._load_tokenizer = tokenizer
        super().__init__(
            network,
            end=lambda: self.tokenizer.token_to_id(end),
            vocabulary=lambda: Vocabulary(lambda: self.tokenizer, [self.end]),
        )

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Text to tokens and back."""
        return self._load_tokenizer()

    def prepare(self) -> None:
        """Load the network, the words, and what grammars need."""
        super().prepare()
        _ = self.end

    @op(batch=stacked)
    def is_over(self, following: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling) -> Bool[Tensor, ""]:
        """Whether the text ends before this token: it says so, or what was written ends with a stop text."""
        import torch

        columns = zip(following[:, 0].tolist(), rows(kv), rows(sampling), strict=True)
        return torch.tensor([self.ends(*column) for column in columns])

    def ends(self, token: int, kv: KV, wish: Sampling) -> bool:
        """The same for one request."""
        if token in (self.end, *wish.stop):
            return True
        longest = max((len(text.encode()) for text in wish.stop_texts), default=0)  # a token is a byte at least
        text = self.spell(cast("PagedKV", kv).chooser.written()[-longest:]) if longest else ""
        return any(stop in text for stop in wish.stop_texts)

    def spell(self, tokens: Sequence[int]) -> str:
        """Tokens as text. Those that are no text are left out."""
        return self.tokenizer.decode(list(tokens))
