"""CausalLM: a transformers decoder as a component, unmodified.

Prefill and decode are one op, `next`: a request brings as many tokens as it has. So a batch mixes prompts and single
tokens in one forward, and a prompt may be given in pieces. The network is loaded where an op first runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mstar.errors import LoadError
from mstar.nn.pages import Pool
from mstar.nn.sampling import Sampling, choose_tokens
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import Component, op
from mstar.walk.states import KV, State
from mstar.walk.types import Bool, Int64, Tensor

if TYPE_CHECKING:
    from mstar.nn.paged import Store

S = TypeVar("S", bound=State)


class CausalLM(Component):
    """A decoder that `network` loads, with `pages` pages of `page_size` positions for its requests."""

    def __init__(self, network: Callable[[], Any], *, end: int, pages: int = 1024, page_size: int = 16) -> None:
        self._load = network
        self._end = end
        self._pages = pages
        self._page_size = page_size

    @functools.cached_property
    def network(self) -> Any:
        """The library's model, set to attend over pages."""
        try:
            from mstar.nn.paged import PAGED  # torch and transformers are loaded here, where the op runs
        except ImportError as error:
            fix = "install the torch that suits this machine, then pip install 'mstar-serve[transformers]'"
            raise LoadError(f"a language model needs torch and transformers: {error}\n  fix: {fix}") from error

        loaded = self._load().eval().requires_grad_(requires_grad=False)
        loaded.config._attn_implementation = PAGED
        return loaded

    @functools.cached_property
    def store(self) -> Store:
        """The memory of all requests."""
        layers = self.network.config.num_hidden_layers  # loads what is needed, or says what is missing
        from mstar.nn.paged import Store

        return Store(Pool(self._pages, self._page_size), layers)

    def make_state(self, kind: type[S]) -> S:  # noqa: ARG002 - it has but one kind
        """A cache with no pages yet."""
        store = self.store
        from mstar.nn.paged import PagedKV

        return cast("S", PagedKV(store, store.pool.new()))

    @op(batch=ragged("T"))
    def next(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read tokens into the cache; the token that follows them. The first call of a request sets its seed."""
        import torch

        from mstar.nn.paged import extend

        caches, wishes = cast("Any", list(rows(kv))), rows(sampling)
        given = tokens.tolist()
        with torch.inference_mode():
            batch, positions = extend(self.store, caches, list(layout.lengths))
            for cache, wish, (start, end) in zip(caches, wishes, pairwise(layout.offsets), strict=True):
                if not cache.history:
                    cache.generator.manual_seed(wish.seed)
                cache.history += given[start:end]
            last = torch.tensor(layout.offsets[1:]) - 1
            output = self.network(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, paged=batch, logits_to_keep=last
            )
            return choose_tokens(output.logits[0], wishes, [c.history for c in caches], [c.generator for c in caches])

    @op(batch=stacked)
    def is_end(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends the text."""
        return token[:, 0] == self._end
