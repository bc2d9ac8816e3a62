"""TextLM: a language model with its tokenizer: detokenization, stop tokens and stop strings.

Output ends before an end-of-sequence or stop token, or after a stop string of the request. Chat templates are part of
each model family.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mstar.errors import NeverFits, Unsupported
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.network_loader import WeightsChecksum
from mstar.requests import Finish, Sampling
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import op
from mstar.walk.states import KV
from mstar.walk.twin import TWIN_TEXT
from mstar.walk.types import Bool, Int64, Tensor, View

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV


class TextLM(CausalLM):
    """A decoder with its `tokenizers.Tokenizer`, both loaded lazily.

    `eos_token` is the text of the end-of-sequence token, or a function that returns the ids of several.
    """

    def __init__(
        self,
        network: Callable[[], Any],
        *,
        tokenizer: Callable[[], Any],
        eos_token: str | Callable[[], Sequence[int]],
        weights_checksum: WeightsChecksum = None,
    ) -> None:
        self._load_tokenizer = tokenizer
        super().__init__(
            network,
            eos_token_id=lambda: self.tokenizer.token_to_id(eos_token) if isinstance(eos_token, str) else eos_token(),
            vocabulary=lambda: Vocabulary(lambda: self.tokenizer, self.eos_token_ids),
            weights_checksum=weights_checksum,
        )

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The loaded tokenizer."""
        return self._load_tokenizer()

    @property
    def eos_token_id(self) -> int:
        """The first end-of-sequence token."""
        return self.eos_token_ids[0]

    def prepare(self) -> None:
        """Load the network, the tokenizer and the vocabulary for grammars."""
        super().prepare()
        _ = self.eos_token_ids

    def _twin_vocabulary(self) -> tuple[Sequence[int], int, Sequence[int]]:
        from mstar.nn.lm.twin.synthetic_decoder import GRAMMAR_TOKENS  # imports torch

        ids = (self.tokenizer.token_to_id(text) for text in GRAMMAR_TOKENS)
        grammar_tokens = [token for token in ids if token is not None]
        return self.tokenize(f" {TWIN_TEXT}"), self.tokenizer.get_vocab_size(), grammar_tokens

    @op(batch=ragged("T"), chunked=True)
    def append(self, tokens: Int64[Tensor, "T"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Append tokens to the KV cache without sampling: the first part of a prompt."""
        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        unsampled = replace(layout, unfinished=frozenset(range(len(caches))))
        self.decoder.next_token(tokens, caches, [Sampling(max_tokens=1)] * len(caches), unsampled)

    @op(batch=stacked)
    def is_over(self, next_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling) -> Bool[Tensor, ""]:
        """Whether the output ends before this token: a stop token, or a stop string at the end of the output."""
        import torch

        columns = zip(next_token[:, 0].tolist(), rows(kv), rows(sampling), strict=True)
        return torch.tensor([self.is_finished(*column) for column in columns])

    def is_finished(self, token: int, kv: KV, sampling: Sampling) -> bool:
        """`is_over` for one request."""
        return self._is_stop_token(token, sampling) or bool(self.stop_string(kv, sampling))

    def make_finish(self, last_token: Tensor, kv: KV, sampling: Sampling, prompt_tokens: Mapping[str, int]) -> Finish:
        """Why a response ended with this token: `stop`, with its stop string if there is one, or `length`."""
        stop_string = self.stop_string(kv, sampling)
        is_stop = bool(stop_string) or self._is_stop_token(int(last_token), sampling)
        return Finish("stop" if is_stop else "length", prompt_tokens, stop_string=stop_string)

    def _is_stop_token(self, token: int, sampling: Sampling) -> bool:
        return token in (*self.eos_token_ids, *sampling.stop_token_ids)

    def stop_string(self, kv: KV, sampling: Sampling) -> str:
        """The stop string at the end of the output; empty if there is none."""
        longest = max(
            (len(text.encode()) for text in sampling.stop_strings), default=0
        )  # a token has at least one byte
        text = self.detokenize(cast("PagedKV", kv).sampler.generated()[-longest:]) if longest else ""
        return next((stop for stop in sampling.stop_strings if stop in text), "")

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Decode tokens into text. Special tokens are left out."""
        return self.tokenizer.decode(list(tokens))

    def tokenize(self, text: str) -> list[int]:
        """Encode text. Other threads run meanwhile: only the batch methods of the library release the GIL."""
        return self.tokenizer.encode_batch_fast([text])[0].ids

    def tokenize_prompt(self, prompt: str | Sequence[int], max_tokens: int) -> list[int]:
        """Token ids of a prompt without a chat template: encoded text, or token ids as they are.

        Raises Unsupported for ids outside the vocabulary, and NeverFits from `max_tokens` tokens on.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        vocabulary_size = self.tokenizer.get_vocab_size()
        if invalid := [token for token in tokens if not 0 <= token < vocabulary_size]:
            raise Unsupported(
                f"prompt: {invalid[0]} is not a token id of the model\n  fix: send ids below {vocabulary_size}"
            )
        if len(tokens) >= max_tokens:
            raise NeverFits(
                f"the prompt has {len(tokens)} tokens, the context holds {max_tokens}\n"
                f"  fix: send fewer than {max_tokens} tokens"
            )
        return tokens

    def max_text_bytes(self, max_tokens: int) -> int | None:
        """Bytes of text above which any tokenization has more than `max_tokens` tokens; None if there is no bound."""
        longest = self._longest_token_bytes
        return None if longest is None else max_tokens * longest

    @functools.cached_property
    def _longest_token_bytes(self) -> int | None:
        """Bytes of the longest token of a byte-level vocabulary, in which a character stands for a byte."""
        if self.tokenizer.normalizer is not None or "ByteLevel" not in repr(self.tokenizer.pre_tokenizer):
            return None  # text can become shorter before it is split into tokens
        return max(map(len, self.tokenizer.get_vocab()))
