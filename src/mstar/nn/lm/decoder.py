"""Decoder: runs a transformers model on ragged batches over a paged KV cache, with a prefix cache and a sampler.

It is the torch part of `CausalLM`: prefill, decode, recomputation of evicted caches, and prefix sharing within a batch.
Which requests share a batch, and when, is decided by the scheduler.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from mstar.errors import LoadError, NeverFits, RowsFailed, Unsupported
from mstar.nn import native
from mstar.nn.compile.captured_forward import CapturedForward
from mstar.nn.compile.graph_cache import FlatNetwork
from mstar.nn.kv.attention_backend import AttentionBackend, LayerNeeds
from mstar.nn.kv.attention_probe import AttentionProbe
from mstar.nn.kv.backend_choice import choose_backend
from mstar.nn.kv.cache_dtype import parse_cache_dtype
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import PAGED_ATTENTION, allocate_tokens, describe_batch, extend_caches, running
from mstar.nn.kv.recurrent_state import RecurrentStates
from mstar.nn.kv.shared_prefixes import shared_prefix_leaders
from mstar.nn.kv.torch_attention import TORCH_ATTENTION, is_native
from mstar.nn.lm.adapters.adapter_cache import AdapterCache
from mstar.nn.lm.decoder_check import check_attention_backend, check_decoder
from mstar.nn.lm.draw_choice import choose_draws
from mstar.nn.lm.fixed_forward import run_fixed
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.remote_experts import RemoteExperts
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.ranks import Rank
from mstar.requests import Sampling
from mstar.walk.batching import Layout

if TYPE_CHECKING:
    from mstar.nn.kv.paged_attention import AttentionBatch
    from mstar.nn.lm.device_steps.captured_steps import CapturedSteps
    from mstar.nn.lm.device_steps.run_ahead import RunAhead
    from mstar.nn.lm.speculation.speculative_decoding import SpeculativeDecoding

_RECOMPUTE_CHUNK_TOKENS = 512
"""Maximum tokens per forward when a dropped KV cache is recomputed."""
_PROFILE_SAMPLING = Sampling(temperature=1.0, top_p=0.9)
"""Sampling of the profile run: it sorts the vocabulary."""


class SlowPath(UserWarning):
    """Graph capture of a network failed, so it runs eagerly."""


class Decoder:
    """A network with paged attention, and its KV cache. The network is a transformers model or a FlatNetwork."""

    attention: ClassVar[str] = PAGED_ATTENTION
    sizes_pages: ClassVar[bool] = True
    """Whether its pages can be sized from the memory of a device; otherwise their number is fixed."""
    pages_per_cross_page: ClassVar[int] = 0
    """Encoder states have a page for this number of others, if their heads differ from those of tokens; otherwise 0."""
    captures_steps: bool = True
    """Whether a decode step reads only its tokens and what an AttentionBatch has, so that a graph can hold it."""
    steps: CapturedSteps | None = None
    """Graphs of decode steps, if the device has graphs."""
    ahead: RunAhead | None = None
    """Launches decode steps ahead, if the device has graphs."""
    speculation: SpeculativeDecoding | None = None
    """Computes several tokens of a request per forward, if it is enabled."""

    def __init__(  # noqa: PLR0913 - keyword arguments
        self,
        network: Any,
        pool: PagePool,
        *,
        swap_bytes: int,
        is_deterministic: bool,
        is_int8: bool = False,
        slots: int = 256,
        has_pages: bool = True,
        attention_backend: str | None = None,
        kv_cache_dtype: str | None = None,
        rank: Rank | None = None,
        speculative_tokens: int = 0,
    ) -> None:
        """With `has_pages=False`, `allocate_pages` must be called before the first request.

        `rank` is the one whose shard the network is, if it was sharded. `speculative_tokens` is the maximum number of
        draft tokens of a request per forward; 0 disables speculative decoding.
        """
        recurrent_layers: Mapping[int, Any] = {}
        if isinstance(network, FlatNetwork):
            layers, self._embed = network.layers, network.embedding
        else:
            network = network.eval().requires_grad_(requires_grad=False)
            network.config._attn_implementation = self.attention
            layers, self._embed = network.config.get_text_config().num_hidden_layers, network.get_input_embeddings()
            from mstar.nn.kv.recurrent_layers import batch_recurrent_layers  # imports transformers

            recurrent_layers = batch_recurrent_layers(network)
            if any(isinstance(module, RemoteExperts) for module in network.modules()):
                self.captures_steps = False  # a graph of a device cannot wait for another process
        self.device: torch.device = self._embed.weight.device
        """Device of the network and its KV cache. Tokens, and all that describes a batch, are on the host before."""
        states = RecurrentStates(recurrent_layers, slots) if recurrent_layers else None
        dtype = self._embed.weight.dtype
        kv_dtype = None if kv_cache_dtype is None else parse_cache_dtype(kv_cache_dtype)
        choice = choose_backend(attention_backend, dtype, self.device, kv_dtype)
        backend = choice.backend
        self.store = KVStore(pool, layers, swap_bytes=swap_bytes, states=states, backend=backend, dtype=kv_dtype)
        self.store.separate_cross_attention(self.pages_per_cross_page)
        self.store.rank, self._is_deterministic = rank, is_deterministic
        if rank is not None:
            self.captures_steps = False  # no graph of a device was ever captured with an operation between ranks
        _check_modes(self, type(network).__name__, is_int8=is_int8)
        self.captured = self._capture(network, is_int8=is_int8)
        self._forward, self.store.window = self.captured.run, self.captured.window
        self.adapters = AdapterCache(self.captured.linears, type(network).__name__, self._embed.weight, self.store)
        if not isinstance(network, FlatNetwork):  # it was checked before it was captured
            if backend.is_partial:
                choice = choice.for_layers(_layer_needs(self))
                self.store.backend = self.store.cross_attention.backend = choice.backend
            _check_batching(self, type(network).__name__)
        self.attention_description = "" if self.device.type == "cpu" else choice.describe()
        """The attention backend on a device, and why it is not the first one of the device; empty on a CPU."""
        self.speculative_tokens = speculative_tokens
        if has_pages:
            allocate_pages(self, pool.count)
        choose_draws(self.device)  # a kernel is compiled before the first request

    def _capture(self, network: Any, *, is_int8: bool) -> CapturedForward:
        """Capture the forward of a network, unless its library must run it."""
        if isinstance(network, FlatNetwork):
            return CapturedForward(network.forward, network.window, network.linears, network.batch_dependence)
        from mstar.nn.compile.graph_capture import eager_forward, flatten  # imports transformers and torch.export

        try:
            return flatten(network, is_int8=is_int8, is_fused=self.store.backend is TORCH_ATTENTION)
        except LoadError:
            raise
        except Exception as error:  # eager execution supports what torch.export does not
            name = type(network).__name__
            if is_int8:
                problem = f"{name} cannot run in int8, because graph capture failed: {error}"
                raise LoadError(
                    f"{problem}\n  fix: set int8=False, or remove `quantization` from the placement"
                ) from error
            problem = f"{name} runs eagerly, which is slower; graph capture failed: {str(error).splitlines()[0]}"
            warnings.warn(f"{problem}\n  fix: none is needed", SlowPath, stacklevel=3)
            self.captures_steps = False  # the code of the library waits for the device
            reason = "graph capture failed, so the code of its library computes it"
            return CapturedForward(eager_forward(network), batch_dependence=reason)

    def _trial_cache(self, store: KVStore) -> PagedKV:
        """An empty KV cache in which tokens can be run at load time."""
        return PagedKV(store, SamplerState())

    @property
    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch; empty if it cannot."""
        if self._is_deterministic:
            return ""
        if self.device.type != "cpu":
            return f"the libraries of {self.device.type} devices choose by the size of a batch how they sum"
        if self.store.states is not None:
            return "torch computes its recurrent layers"
        memories = zip(self.store.keys, self.store.values, strict=True)
        if not all(is_native(memory, self._embed.weight.dtype) for memory in memories):
            return "torch computes its attention, because there are no kernels for it (such as without a C++ compiler)"
        return self.captured.batch_dependence

    def new_cache(self, vocabulary: Vocabulary | None) -> PagedKV:
        """Create an empty KV cache."""
        return PagedKV(self.store, SamplerState(vocabulary))

    def embed(self, tokens: Tensor) -> Tensor:
        """[tokens] to [tokens, size] on the device of the network; embeddings are returned unchanged."""
        tokens = tokens.to(self.device)
        return self._embed(tokens) if tokens.ndim == 1 else tokens

    def _embed_inputs(self, given: Tensor, caches: Sequence[PagedKV], counts: Sequence[int]) -> Tensor:  # noqa: ARG002
        """Embeddings of the inputs of these caches, `counts` positions each."""
        return self.embed(given)

    def _lineage_embeddings(self, cache: PagedKV) -> Tensor:
        """Embeddings of all inputs of a cache, for recomputation."""
        return torch.cat([self.embed(part) for part in cache.lineage()])

    # ---------------------------------------------------------------- ops
    @torch.inference_mode()
    def next_token(
        self,
        inputs: Tensor,
        caches: list[PagedKV],
        params: Sequence[Sampling],
        layout: Layout,
        content_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Append the inputs, a ragged batch of tokens or embeddings, to the caches; return next tokens and logits.

        Unfinished rows (chunked prefill) get token 0. Embeddings with `content_ids` use the prefix cache like tokens.
        The logits are valid until the next step.
        """
        if self.speculation is not None and content_ids is None and inputs.ndim == 1:
            self.adapters.bind(caches, params)
            return self.speculation.next_token(inputs, caches, params, layout)
        return self.next_token_with_hidden(inputs, caches, params, layout, content_ids, is_copied=False)[:2]

    @torch.inference_mode()
    def next_token_with_hidden(
        self,
        inputs: Tensor,
        caches: list[PagedKV],
        params: Sequence[Sampling],
        layout: Layout,
        content_ids: Tensor | None = None,
        *,
        is_copied: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Do the same, and return the hidden state of each position that was not in the prefix cache.

        Unless they are copied, the next step can overwrite logits and hidden states.
        """
        self._reject_too_long(caches, params, layout.lengths)
        self.adapters.bind(caches, params)
        self._record_inputs(inputs if content_ids is None else content_ids, caches, layout.lengths)
        if content_ids is not None:
            for cache, part in zip(caches, inputs.split(list(layout.lengths)), strict=True):
                cache.append_embeddings(part.clone(), len(part))
        inputs, counts = self._skip_cached_prefix(inputs, caches, layout.lengths)
        slots, step, sampled = allocate_tokens(self.store, caches, counts), None, None
        finished = [row for row in range(len(caches)) if row not in layout.unfinished]
        if self.steps is not None and inputs.ndim == 1 and counts.count(1) == len(finished) == len(counts):
            step = self.steps.run(inputs, caches, params, is_copied=is_copied)  # it describes the batch itself
        if step is None:
            batch = describe_batch(self.store, caches, counts, slots)
            last = torch.tensor([end - 1 for end in accumulate(counts)])
            inputs, last = batch.move(self.device, inputs, last[finished] if layout.unfinished else last)
            logits, hidden = self._run(self._embed_inputs(inputs, caches, counts), batch, last)
        else:
            sampled, logits, hidden = step
        self.share_full_pages(caches, counts)
        if sampled is not None:
            return sampled, logits, hidden
        if not layout.unfinished:
            return sample_tokens(logits, params, [cache.sampler for cache in caches]), logits, hidden
        sampled = torch.zeros((len(caches), 1), dtype=torch.int64)
        all_logits = logits.new_zeros((len(caches), logits.shape[1]))
        if finished:
            samplers = [caches[row].sampler for row in finished]
            sampled[finished] = sample_tokens(logits, [params[row] for row in finished], samplers)
            all_logits[finished] = logits
        return sampled, all_logits, hidden

    @torch.inference_mode()
    def hidden_states(self, inputs: Tensor, caches: list[PagedKV], layout: Layout) -> Tensor:
        """Append the inputs, a ragged batch, to the caches; return the hidden state of each position."""
        self._record_inputs(inputs, caches, layout.lengths)
        batch = extend_caches(self.store, caches, layout.lengths)
        inputs, last = batch.move(self.device, inputs, torch.tensor([0]))
        hidden = self._run(self._embed_inputs(inputs, caches, layout.lengths), batch, last)[1]
        self.share_full_pages(caches, layout.lengths)
        return hidden

    @torch.inference_mode()
    def attend_only(self, embeddings: Tensor, caches: list[PagedKV], layout: Layout) -> Tensor:
        """Hidden states of embeddings that attend to the caches and each other; the caches are not changed."""
        if self.store.states is not None:
            fix = "use a network with attention only"
            raise Unsupported(f"recurrent layers read in one direction, so attend_only cannot run\n  fix: {fix}")
        forks = [cache.fork() for cache in caches]
        try:
            batch = extend_caches(self.store, forks, layout.lengths, is_causal=False)
            (last,) = batch.move(self.device, torch.tensor([0]))
            return self._run(embeddings, batch, last)[1]
        finally:
            for fork in forks:
                fork.free()

    @torch.inference_mode()
    def restore(self, caches: Sequence[PagedKV]) -> None:
        """Swap evicted caches back in, or recompute the ones whose data was dropped."""
        for cache in caches:
            is_dropped = cache.is_dropped
            cache.restore()
            if not is_dropped:
                continue
            try:
                self._recompute(cache)
            except BaseException:
                self.store.drop(cache)
                raise

    def _reject_too_long(self, caches: Sequence[PagedKV], params: Sequence[Sampling], lengths: Sequence[int]) -> None:
        """Reject new requests whose prompt and `max_tokens` would not fit into all pages."""
        if self.store.window is not None:
            return
        pool, errors = self.store.pool, dict[int, Exception]()
        for row in [row for row, cache in enumerate(caches) if cache.sampler.prompt_length is None]:
            positions = caches[row].table.length + lengths[row] + params[row].max_tokens - 1
            try:
                pool.require_capacity(-(-positions // pool.page_size) + caches[row].extra_pages)
            except NeverFits as error:
                errors[row] = error
        if errors:
            raise RowsFailed(errors)

    def _record_inputs(self, inputs: Tensor, caches: Sequence[PagedKV], lengths: Sequence[int]) -> None:
        """Record the inputs in the lineage of their caches."""
        if inputs.ndim > 1:
            for cache, part in zip(caches, inputs.split(list(lengths)), strict=True):
                cache.append_embeddings(part.clone())  # a view would keep the whole batch alive
            return
        tokens, first = inputs.tolist(), 0
        if lengths.count(1) == len(lengths):  # a decode step
            for cache, token in zip(caches, tokens, strict=True):
                cache.sampler.history.append(token)
            return
        for cache, length in zip(caches, lengths, strict=True):
            cache.sampler.append_tokens(tokens[first : first + length])
            first += length

    def _skip_cached_prefix(
        self, inputs: Tensor, caches: Sequence[PagedKV], lengths: Sequence[int]
    ) -> tuple[Tensor, list[int]]:
        """Attach pages of the prefix cache, and return the inputs that are left to compute.

        If several requests of the batch have the same uncached prefix, one of them computes it first.
        """
        prompts = {row: caches[row] for row, length in enumerate(lengths) if length > 1}
        if not prompts:
            return inputs, list(lengths)
        parts = list(inputs.split(list(lengths)))
        if self.store.has_prefix_cache:
            self.store.prefix_queries += sum(lengths[row] for row in prompts)
        while True:
            for row, cache in prompts.items():
                parts[row] = parts[row][self.store.attach_cached(cache) :]
            prefixes = shared_prefix_leaders(prompts)
            if not prefixes:
                return torch.cat(parts), [len(part) for part in parts]
            leaders, counts = [caches[row] for row in prefixes], list(prefixes.values())
            batch = extend_caches(self.store, leaders, counts)
            prefix = torch.cat([parts[row][:count] for row, count in prefixes.items()])
            prefix, last = batch.move(self.device, prefix, torch.tensor([0]))
            self._run(self._embed_inputs(prefix, leaders, counts), batch, last)
            self.share_full_pages(leaders, counts)
            for row, count in prefixes.items():
                parts[row] = parts[row][count:]

    def share_full_pages(self, caches: Sequence[PagedKV], counts: Sequence[int]) -> None:
        """Add the pages that this step filled to the prefix cache."""
        size = self.store.pool.page_size
        for cache, count in zip(caches, counts, strict=True):
            if cache.table.length % size < count:
                cache.share_full_pages()

    def _recompute(self, cache: PagedKV) -> None:
        """Recompute the pages of a dropped cache from its lineage."""
        length = cache.table.length
        embeddings = self._lineage_embeddings(cache)
        self.store.release(cache)
        self._append_again(cache, embeddings[:length])

    def _append_again(self, cache: PagedKV, embeddings: Tensor) -> None:
        """Compute the keys and values of inputs that are in the lineage of a cache."""
        for first in range(0, len(embeddings), _RECOMPUTE_CHUNK_TOKENS):
            part = embeddings[first : first + _RECOMPUTE_CHUNK_TOKENS]
            batch = extend_caches(self.store, [cache], [len(part)])
            (last,) = batch.move(self.device, torch.tensor([0]))
            self._run(part, batch, last)

    # ---------------------------------------------------------------- the forward
    def _run(self, embeddings: Tensor, batch: AttentionBatch, last: Tensor) -> tuple[Tensor, Tensor]:
        """Run the forward; return the logits at the indices `last`, and all hidden states."""
        if self._is_deterministic:
            return run_fixed(self._forward, embeddings, batch, last)
        if not len(last):
            last = last.new_zeros(1)  # a captured network computes at least one row of logits
        with running(batch):
            return self._forward(embeddings[None], batch.positions[None], last)


def _check_modes(decoder: Decoder, family: str, *, is_int8: bool) -> None:
    """Raise LoadError for a mode that the network, its attention backend or its device does not have."""
    dtype, backend = decoder._embed.weight.dtype, decoder.store.backend
    if decoder.store.states is not None and decoder.store.rank is not None:
        problem = f"{family} has recurrent layers, which several ranks cannot share"
        raise LoadError(f"{problem}\n  fix: remove `ranks` from its worker")
    if decoder.store.states is not None and decoder._is_deterministic:
        problem = f"{family} has recurrent layers, which do not run in deterministic mode"
        raise LoadError(f"{problem}\n  fix: set deterministic=False")
    modes = {"deterministic": decoder._is_deterministic, "int8": is_int8}
    native_modes = " and ".join(name for name, is_on in modes.items() if is_on)
    if native_modes and backend is not TORCH_ATTENTION:
        problem = f"{native_modes} mode does not run with the attention backend {backend.name}"
        raise LoadError(f"{problem}\n  fix: set attention_backend='torch'")
    if native_modes and not native.is_native(dtype, decoder.device):
        fix = "install g++, and use float32 or bfloat16 on a CPU"
        raise LoadError(f"{native_modes} mode needs the fused kernels, which are not available\n  fix: {fix}")
    if is_int8 and not native.supports_int8_matmul():
        problem = "int8 is slower than bfloat16 on this CPU, which has neither AMX nor AVX-512 VNNI"
        raise LoadError(f"{problem}\n  fix: set int8=False, or remove `quantization` from the placement")


def temporary_store(decoder: Decoder, backend: AttentionBackend, pool: PagePool) -> KVStore:
    """A KV cache for trial runs."""
    recurrent, layers = decoder.store.states, len(decoder.store.keys)
    states = None if recurrent is None else RecurrentStates(recurrent.layers, slots=8)
    store = KVStore(pool, layers, swap_bytes=0, states=states, backend=backend, dtype=decoder.store.dtype)
    store.separate_cross_attention(decoder.pages_per_cross_page)
    return store


def _layer_needs(decoder: Decoder) -> set[LayerNeeds]:
    """What the layers of a network need of an attention backend, from a run of one token."""
    probe = AttentionProbe()
    cache = decoder._trial_cache(temporary_store(decoder, probe, PagePool(16, 4)))
    run_tokens(decoder, cache, 1)
    return probe.needs


@torch.inference_mode()
def _check_batching(decoder: Decoder, family: str) -> None:
    """Reject a network that chunked prefill or batching would change. The KV cache of the check is temporary."""
    backend = decoder.store.backend
    store = temporary_store(decoder, backend, PagePool(16, 4))

    def run(parts: Sequence[Tensor], caches: Sequence[PagedKV]) -> Sequence[Tensor]:
        counts = [len(part) for part in parts]
        batch = extend_caches(caches[0].store, caches, counts)
        inputs, last = batch.move(decoder.device, torch.cat(list(parts)), torch.tensor([0]))
        return decoder._run(decoder._embed_inputs(inputs, caches, counts), batch, last)[1].split(counts)

    check_decoder(family, decoder._embed.weight, run, lambda: decoder._trial_cache(store))
    if backend is not TORCH_ATTENTION:
        reference = temporary_store(decoder, TORCH_ATTENTION, PagePool(16, 4))
        caches = decoder._trial_cache(store), decoder._trial_cache(reference)
        check_attention_backend(family, decoder._embed.weight, run, *caches)


def allocate_pages(decoder: Decoder, count: int, **graph_limits: int) -> None:
    """Allocate the KV cache, with this number of pages, at load time instead of in the first request.

    `graph_limits` are those of `CapturedSteps`.
    """
    store = decoder.store
    if store.pool.count != count:
        store.pool = PagePool(count, store.pool.page_size)
    cache = decoder._trial_cache(store)
    size = run_tokens(decoder, cache, 1).shape[1]
    cache.free()
    if store.states is not None and not any(keys.numel() for keys in store.keys):
        store.window = 1  # without attention no position is needed again, so pages are released
    decoder.steps = new_steps(decoder, store, size, **graph_limits)
    if decoder.steps is not None:
        from mstar.nn.lm.device_steps.run_ahead import RunAhead

        decoder.ahead = RunAhead(decoder.steps, store, decoder.next_token, decoder.share_full_pages)
    if decoder.speculative_tokens:
        from mstar.nn.lm.speculation.speculative_decoding import SpeculativeDecoding

        decoder.speculation = SpeculativeDecoding(decoder, decoder._run, decoder.speculative_tokens)


def new_steps(decoder: Decoder, store: KVStore, size: int, **graph_limits: int) -> CapturedSteps | None:
    """Graphs of the decode steps with a KV cache, and logits of this size; None if there are none."""
    if decoder.device.type == "cpu" or not decoder.captures_steps or store.states is not None:
        return None
    from mstar.nn.lm.device_steps.captured_steps import CapturedSteps  # imports what only devices need

    return CapturedSteps.create(store, decoder.embed, decoder._forward, size, **graph_limits)


@torch.inference_mode()
def run_tokens(decoder: Decoder, cache: PagedKV, count: int, rows: int = 0) -> Tensor:
    """Append this number of tokens to a cache, and sample what follows the first rows of them. Returns logits."""
    batch = extend_caches(cache.store, [cache], [count])
    tokens, last = torch.zeros(count, dtype=torch.int64), torch.arange(max(1, rows))
    tokens, last = batch.move(decoder.device, tokens, last)
    logits, _ = decoder._run(decoder._embed_inputs(tokens, [cache], [count]), batch, last)
    if rows:
        sample_tokens(logits, [_PROFILE_SAMPLING] * rows, [SamplerState() for _ in range(rows)])
    return logits
