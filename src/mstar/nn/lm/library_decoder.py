"""LibraryDecoder: a transformers model run by its own forward, one request at a time, with the library's own cache.

For decoders that paged attention does not support: ALiBi, recurrent and hybrid families. It has the part of `Decoder`
that text generation needs. A request is one forward of the whole prompt, then one forward per token, exactly as in
`generate`; requests share no batch, no prefix cache and no chunked prefill, and caches are not evicted.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mstar.errors import LoadError
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.adapters.no_adapters import NoAdapters
from mstar.nn.lm.decoder_check import check_decoder
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerSnapshot, SamplerState
from mstar.nn.ranks import Rank
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV

_CACHE_NAMES = ("past_key_values", "cache_params")
"""Names of the cache in the forward of transformers models: of attention, and of state space models."""

_CHECK_CHUNKS = (11, 1)
"""Chunks of the self-check at load time: a prompt, then one token with the cache."""
_CHECK_FIX = "use a model of another family; this one does not keep its state in the cache that its forward returns"


class LibraryKV(KV):
    """Cache of one request as transformers keeps it, and its sampler, whose history has all tokens.

    A copy and a rollback drop the cache; the next forward computes it again from the history.
    """

    def __init__(self, sampler: SamplerState) -> None:
        self.sampler = sampler
        self.cache: Any = None
        self.length = 0
        """Number of tokens in the cache."""

    def fork(self) -> Self:
        """An independent copy."""
        forked = type(self)(self.sampler.fork())
        forked.tenant = self.tenant
        return forked

    def snapshot(self) -> Any:
        """The current position."""
        return self.sampler.snapshot()

    def rollback(self, snapshot: Any) -> None:
        """Drop the tokens since the snapshot."""
        self.sampler.rollback(snapshot)
        self.cache, self.length = None, 0

    def export(self) -> SamplerSnapshot:
        """The tokens and the number of draws, for migration."""
        return self.sampler.export()

    def load(self, exported: SamplerSnapshot) -> None:
        """Load an exported state into this new one."""
        self.sampler.load(exported)


class LibraryDecoder:
    """A transformers decoder with its own cache."""

    sizes_pages: ClassVar[bool] = False
    attention_description: ClassVar[str] = ""
    """Empty: the attention is that of transformers."""
    ahead: ClassVar[None] = None
    """No step is launched ahead."""
    speculation: ClassVar[None] = None
    """No draft is verified."""
    nondeterminism: ClassVar[str] = ""
    """Empty: requests share no forward."""
    adapters: ClassVar[NoAdapters] = NoAdapters("transformers, which runs this family,")

    def __init__(
        self,
        network: Any,
        _pool: PagePool,
        *,
        is_int8: bool = False,
        attention_backend: str | None = None,
        kv_cache_dtype: str | None = None,
        rank: Rank | None = None,
        speculative_tokens: int = 0,
        **_options: Any,
    ) -> None:
        """Takes the arguments of `Decoder`. It has no pages."""
        unused = {"attention_backend": attention_backend, "kv_cache_dtype": kv_cache_dtype}
        for setting, value in (unused | {"speculative_tokens": speculative_tokens}).items():
            if value:
                problem = f"{type(network).__name__} is run by transformers, which does not use `{setting}`"
                raise LoadError(f"{problem}\n  fix: remove `{setting}` from the placement")
        if rank is not None:
            problem = f"{type(network).__name__} is run by transformers, in one process"
            raise LoadError(f"{problem}\n  fix: remove `ranks` from its worker")
        if is_int8:
            problem = f"{type(network).__name__} is run by transformers, which has no int8 mode"
            raise LoadError(f"{problem}\n  fix: remove `quantization` from the placement")
        self._network = network.eval().requires_grad_(requires_grad=False)
        parameters = inspect.signature(network.forward).parameters
        self._cache_name = next((name for name in _CACHE_NAMES if name in parameters), None)
        """None: the model has no cache, and each forward reads all tokens."""
        self._check()

    @torch.inference_mode()
    def _check(self) -> None:
        """Reject a network whose cache does not continue a request as its tokens at once do, or is not its own."""

        def run(parts: Sequence[Tensor], caches: Sequence[LibraryKV]) -> list[Tensor]:
            for cache, part in zip(caches, parts, strict=True):
                cache.sampler.append_tokens(part.tolist())
            return [self._next_logits(cache) for cache in caches]

        family, embedding = type(self._network).__name__, self._network.get_input_embeddings().weight
        check_decoder(family, embedding, run, lambda: self.new_cache(None), chunks=_CHECK_CHUNKS, fix=_CHECK_FIX)

    def new_cache(self, vocabulary: Vocabulary | None) -> LibraryKV:
        """Create an empty cache."""
        return LibraryKV(SamplerState(vocabulary))

    @torch.inference_mode()
    def next_token(
        self, inputs: Tensor, caches: Sequence[LibraryKV], params: Sequence[Sampling], layout: Layout
    ) -> tuple[Tensor, Tensor]:
        """Append the tokens of a ragged batch; return next tokens and logits. Unfinished rows get token 0."""
        self.adapters.reject(params)
        for cache, tokens in zip(caches, inputs.split(list(layout.lengths)), strict=True):
            cache.sampler.append_tokens(tokens.tolist())
        finished = [row for row in range(len(caches)) if row not in layout.unfinished]
        sampled = torch.zeros((len(caches), 1), dtype=torch.int64)
        if not finished:
            return sampled, torch.zeros((len(caches), 1))
        logits = torch.cat([self._next_logits(caches[row]) for row in finished])
        samplers = [caches[row].sampler for row in finished]
        sampled[finished] = sample_tokens(logits, [params[row] for row in finished], samplers)
        all_logits = logits.new_zeros((len(caches), logits.shape[1]))
        all_logits[finished] = logits
        return sampled, all_logits

    def _next_logits(self, cache: LibraryKV) -> Tensor:
        """Logits after the history of a request, [1, vocabulary]."""
        tokens: array[int] = cache.sampler.history
        if self._cache_name is None:
            return self._network(input_ids=torch.tensor([tokens.tolist()], device=self._network.device)).logits[:, -1]
        if cache.cache is None or len(tokens) != cache.length + 1:
            # Recurrent families continue a cache by single tokens only.
            cache.cache, unread = None, tokens
        else:
            unread = tokens[-1:]
        arguments = {self._cache_name: cache.cache, "use_cache": True}
        output = self._network(input_ids=torch.tensor([unread.tolist()], device=self._network.device), **arguments)
        cache.cache, cache.length = output[self._cache_name], len(tokens)
        return output.logits[:, -1]
