"""CausalLM: a transformers decoder as a component, unmodified.

Prefill and decode are one op, `next_token`: a request brings as many tokens as it has. So a batch mixes prompts and single
tokens in one forward, and a prompt may be given in pieces. `next_token_from_embeddings` takes embeddings instead of tokens, `hidden_states` and
`hidden_states_from_embeddings` give hidden states instead of a choice, `attend_only` leaves the cache as it is. The network is loaded where an op
first runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mstar.errors import LoadError
from mstar.nn.kv.page_pool import PagePool
from mstar.requests import Logprobs, Sampling
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import Component, op
from mstar.walk.states import KV, State
from mstar.walk.types import Bool, Float, Int64, Tensor, View

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV
    from mstar.nn.lm.decoder import Decoder
    from mstar.nn.lm.grammar import Vocabulary
    from mstar.nn.lm.tensor_parallel import TensorParallel

S = TypeVar("S", bound=State)


class CausalLM(Component):
    """A decoder that `network` loads, with `pages` pages of `page_size` positions for its requests.

    `swap_bytes` bytes outside of the pages are for caches that must make room for others; a cache that finds none is read
    again when it is needed. `vocabulary` is what grammars need. With `deterministic` every forward has the same size,
    so that a request gets the same bits alone and in a crowd, for some speed. With `int8` products with weights are in
    8-bit integers, on CPUs: faster, in less memory, and a little less exact. `eos_token_id` is the token that ends
    a text, or says which it is.
    """

    parallel: TensorParallel | None = None
    """The ranks that share its weights. Whoever runs it there says so, before its first op."""

    def __init__(  # noqa: PLR0913 - each is asked for by name
        self,
        network: Callable[[], Any],
        *,
        eos_token_id: int | Callable[[], int],
        pages: int = 1024,
        page_size: int = 16,
        swap_bytes: int = 1 << 30,
        vocabulary: Callable[[], Vocabulary] | None = None,
        deterministic: bool = False,
        int8: bool = False,
    ) -> None:
        self._load = network
        self._eos_token_id = eos_token_id
        self._sizes = (pages, page_size, swap_bytes)
        self._load_vocabulary = vocabulary
        self._decoder_options = {"is_deterministic": deterministic, "is_int8": int8}

    @functools.cached_property
    def eos_token_id(self) -> int:
        """The token that ends a text."""
        return self._eos_token_id() if callable(self._eos_token_id) else self._eos_token_id

    @functools.cached_property
    def decoder(self) -> Decoder:
        """The network, loaded, and the memory of all requests."""
        try:
            make = self._decoder_class()  # torch and transformers are loaded here, where the op runs
        except ImportError as error:
            fix = "install the torch that suits this machine, then pip install 'mstar-serve[transformers]'"
            raise LoadError(f"a language model needs torch and transformers: {error}\n  fix: {fix}") from error
        network = self._load()
        if self.parallel is not None:
            self.parallel.shard(network)
        pages, page_size, swap = self._sizes
        return make(network, PagePool(pages, page_size), swap_bytes=swap, **self._decoder_options)

    def _decoder_class(self) -> type[Decoder]:
        from mstar.nn.lm.decoder import Decoder

        return Decoder

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary | None:
        return None if self._load_vocabulary is None else self._load_vocabulary()

    def make_state(self, kind: type[S]) -> S:  # noqa: ARG002 - it has but one kind
        """A cache with no pages yet."""
        return cast("S", self.decoder.new_cache(self._vocabulary))

    def load_state(self, kind: type[S], exported: Any) -> S:
        """A cache of what one like it exported."""
        state = self.make_state(kind)
        cast("PagedKV", state).load(exported)
        return state

    def prepare(self) -> None:
        """Load the network, and what grammars need."""
        _ = self.decoder
        if self._vocabulary is not None:
            self._vocabulary.prepare()

    def memory_stats(self) -> dict[str, int]:
        """How many of its pages are held by caches."""
        pages = self._sizes[0]
        free = self.decoder.store.pool.free_pages if "decoder" in vars(self) else pages
        return {"pages_used": pages - free, "pages": pages}

    def restore(self, states: Sequence[State]) -> None:
        """Give caches that left their pages back what was in them."""
        self.decoder.restore(cast("Sequence[PagedKV]", states))

    @op(batch=ragged("T"), chunked=True)
    def next_token(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read tokens into the cache; the token that follows them."""
        return self.decoder.next_token(tokens, _caches(kv), rows(sampling), layout)[0]

    @op(batch=ragged("T"), chunked=True)
    def next_token_scored(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "1"], Logprobs | None]:
        """The same, and how likely the token was, if `sampling.logprobs` wishes to know."""
        from mstar.nn.lm.sampler import compute_logprobs

        wishes = rows(sampling)
        chosen, logits = self.decoder.next_token(tokens, _caches(kv), wishes, layout)
        return chosen, cast("Any", compute_logprobs(logits, wishes, chosen))

    @op(batch=ragged("T"), chunked=True)
    def next_token_from_embeddings(
        self, embeddings: Float[Tensor, "T D"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read embeddings, of images say, as if they were tokens; the token that follows them."""
        return self.decoder.next_token(embeddings, _caches(kv), rows(sampling), layout)[0]

    @op(batch=ragged("T"), chunked=True)
    def next_token_mixed(
        self,
        content_ids: Int64[Tensor, "T"],
        embeddings: Float[Tensor, "T D"],
        kv: KV,
        sampling: Sampling,
        layout: Layout = ONE_ROW,
    ) -> Int64[Tensor, "1"]:
        """The same for embeddings that have numbers: those of tokens, and above them such as `hash_embeddings` gives.

        They count as tokens do, and what one request has read another need not read again.
        """
        return self.decoder.next_token(embeddings, _caches(kv), rows(sampling), layout, content_ids)[0]

    @op(batch=ragged("T"), chunked=True)
    def hidden_states(self, tokens: Int64[Tensor, "T"], kv: KV, layout: Layout = ONE_ROW) -> Float[Tensor, "T D"]:
        """Read tokens into the cache; the network's last hidden state of each."""
        return self.decoder.hidden_states(tokens, _caches(kv), layout)

    @op(batch=ragged("T"), chunked=True)
    def hidden_states_from_embeddings(
        self, embeddings: Float[Tensor, "T D"], kv: KV, layout: Layout = ONE_ROW
    ) -> Float[Tensor, "T D"]:
        """Read embeddings into the cache; the network's last hidden state of each."""
        return self.decoder.hidden_states(embeddings, _caches(kv), layout)

    @op(batch=ragged("T"))
    def attend_only(
        self, embeddings: Float[Tensor, "T D"], kv: View[KV], layout: Layout = ONE_ROW
    ) -> Float[Tensor, "T D"]:
        """Hidden states of embeddings that see the cache and each other, both ways. The cache stays as it is.

        This is a denoising step of a flow head that shares the backbone.
        """
        return self.decoder.attend_only(embeddings, _caches(kv), layout)

    @op(batch=ragged("T"))
    def embed(self, tokens: Int64[Tensor, "T"]) -> Float[Tensor, "T D"]:
        """The embeddings of tokens."""
        return self.decoder.embed(tokens)

    @op(batch=stacked)
    def is_end(self, token: Int64[Tensor, "1"], sampling: Sampling | None = None) -> Bool[Tensor, ""]:
        """Whether this token ends the text."""
        import torch

        ends = [(self.eos_token_id, *(wish.stop_token_ids if wish else ())) for wish in rows(sampling)]
        return torch.tensor([one in end for one, end in zip(token[:, 0].tolist(), ends, strict=True)])


def _caches(kv: KV) -> list[PagedKV]:
    return list(cast("Sequence[PagedKV]", rows(kv)))
