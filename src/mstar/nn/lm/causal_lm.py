"""CausalLM: an unmodified transformers decoder as a component, with continuous batching and chunked prefill.

Prefill and decode are one op, `next_token`: each request of a batch has any number of tokens. So one forward mixes
prompts and single tokens (continuous batching), and a prompt can be split into chunks (chunked prefill).

| op | reads | returns |
|---|---|---|
| `next_token`, `next_token_scored` | tokens | the next token, with logprobs |
| `next_token_from_embeddings`, `next_token_mixed` | embeddings | the next token |
| `hidden_states`, `hidden_states_from_embeddings` | tokens, embeddings | hidden states |
| `attend_only` | embeddings, without changing the KV cache | hidden states |

The network is loaded by `prepare` or by the first op. Which requests share a batch is decided by the scheduler.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from mstar.errors import LoadError
from mstar.nn.kernel_library import start_compiling
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.network_loader import NetworkLoader, WeightsChecksum
from mstar.nn.lm.twin.twin_lm import DEFAULT_PAGES, TwinLM
from mstar.requests import Logprobs, Sampling
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import op
from mstar.walk.states import KV, State
from mstar.walk.types import Bool, Float, Int64, Tensor, View

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV
    from mstar.nn.lm.decoder import Decoder
    from mstar.nn.lm.grammar import Vocabulary
    from mstar.nn.lm.remote_experts import ExpertProcess
    from mstar.nn.ranks import Rank

log = logging.getLogger("mstar.worker")

VLLM = "vllm"
"""Value of the setting `engine` for a model that vLLM runs (`mstar.nn.lm.vllm.vllm_decoder`)."""
S = TypeVar("S", bound=State)


class CausalLM(TwinLM):
    """Causal language model that `network` loads, with a KV cache of `pages` pages of `page_size` positions.

    Without `pages` the KV cache of a worker with a device has the pages that fit (`mstar.nn.device_memory`), any other
    1024.

    A network with recurrent layers has `slots` slots for their states; a running request uses two, any other one.
    `eos_token_id` is the end-of-sequence token, or a function that returns one or several. `swap_bytes` is the swap
    space for evicted KV caches; a cache that does not fit there is recomputed. `vocabulary` enables grammars.
    `deterministic` runs every forward at the same size, at some cost of speed: results are equal bit for bit alone and
    in a batch where `nondeterminism` would give a reason, such as bf16 instructions. `int8` quantizes weights to 8-bit
    integers on CPUs: faster, less memory, slightly less exact.
    `weights_checksum` identifies the weights, or is a function that does, and enables the graph cache: the captured
    network is kept on disk and memory-mapped by the next start (`mstar.nn.compile.graph_cache`). It must change with
    everything that determines what `network` returns, such as the files, the dtype and the code of `network`.
    `attention_backend` is `torch`, `triton` or `flashinfer` (`mstar.nn.kv.attention_backend`); by default the device
    decides. `kv_cache_dtype` is the dtype of the KV cache (`mstar.nn.kv.cache_dtype`); by default that of the network.
    `speculative_tokens` enables speculative decoding with drafts of up to this number of tokens
    (`mstar.nn.lm.speculation`), on CPUs.
    """

    runs_on_device: ClassVar[bool] = True
    supported_settings: ClassVar[tuple[str, ...]] = (
        "dtype",
        "quantization",
        "attention_backend",
        "kv_cache_dtype",
        "engine",
        "vllm_args",
        "experts",
        "speculative_tokens",
        "adapters",
    )
    model_folder: Callable[[], Path | None] | None = None
    """Returns the folder in the Hugging Face layout that `network` loads, for other engines, if there is one."""
    runs_on_ranks: ClassVar[bool] = True
    rank: Rank | None = None
    """The rank whose shard of the weights it loads (tensor parallelism); None for all of them."""
    expert_process: ExpertProcess | None = None
    """The process that computes its experts, set by the worker before `prepare`; None for this one."""

    def __init__(  # noqa: PLR0913 - keyword arguments
        self,
        network: Callable[[], Any],
        *,
        eos_token_id: int | Callable[[], int | Sequence[int]],
        pages: int | None = None,
        page_size: int = 16,
        slots: int = 256,
        swap_bytes: int = 1 << 30,
        vocabulary: Callable[[], Vocabulary] | None = None,
        deterministic: bool = False,
        int8: bool = False,
        weights_checksum: WeightsChecksum = None,
        attention_backend: str | None = None,
        kv_cache_dtype: str | None = None,
        speculative_tokens: int = 0,
    ) -> None:
        self._loader = NetworkLoader(network, weights_checksum, is_int8=int8)
        self._eos_token_id = eos_token_id
        self._sizes: tuple[int | None, int, int] = (pages, page_size, swap_bytes)
        self._vocabulary: Callable[[], Vocabulary | None] = functools.cache(vocabulary or (lambda: None))
        self._decoder_options: dict[str, Any] = {"is_deterministic": deterministic, "is_int8": int8, "slots": slots}
        self._decoder_options["speculative_tokens"] = speculative_tokens
        named = {"attention_backend": attention_backend, "kv_cache_dtype": kv_cache_dtype}
        self._decoder_options |= {name: value for name, value in named.items() if value is not None}

    @functools.cached_property
    def decoder(self) -> Decoder:
        """The loaded network with the KV cache of all requests."""
        if self.operator_settings.get("engine") == VLLM:
            if self.rank is not None:
                problem = f"{self.name} is run by vLLM, which does not use the ranks of a worker"
                raise LoadError(f"{problem}\n  fix: remove `ranks` or `engine` from the placement")
            from mstar.nn.lm.vllm.vllm_decoder import load_vllm

            pages, page_size, _ = self._sizes
            decoder = load_vllm(
                self.name,
                None if self.model_folder is None else self.model_folder(),
                self._loader.load_uncached,
                settings=self.operator_settings,
                cache_tokens=(pages or DEFAULT_PAGES) * page_size,
                device_type="cpu" if self.device is None else self.device.type,
                memory_share=None if self.memory is None else self.memory.share,
            )
            return cast("Decoder", decoder)
        is_on_cpu = self.device is None or self.device.type == "cpu"
        # Captured graphs are those of one CPU with all weights.
        is_cacheable = self.rank is None and self.expert_process is None and is_on_cpu
        loader, options = self._loader, {**self._decoder_options}
        if settings := self.operator_settings:
            loader = loader.with_settings(settings)
            options["is_int8"] = loader.is_int8
            options |= _decoder_settings(settings)
        is_cacheable &= options.get("attention_backend", "torch") == "torch"
        if is_on_cpu:
            start_compiling()
        try:
            decoder_class = self._decoder_class()  # imports torch, on the worker only
            load = loader.load if is_cacheable else loader.load_uncached
            network = load() if self.rank is None else loader.load_shard(self.rank)
        except ImportError as error:
            fix = "install torch for this machine, then pip install 'mstar-serve[transformers]'"
            raise LoadError(f"a language model needs torch and transformers: {error}\n  fix: {fix}") from error
        if self.expert_process is not None:
            from mstar.nn.lm.remote_experts import replace_experts

            replace_experts(network, self.expert_process)
        if self.rank is not None:
            options["rank"] = self.rank
        pages, page_size, swap = self._sizes
        pool, options = PagePool(pages or DEFAULT_PAGES, page_size), {"swap_bytes": swap, **options}
        if self.memory is None:
            return decoder_class(network if is_on_cpu else network.to(self.device), pool, **options)
        from mstar.nn.decoder_memory import request_pages

        self.memory.require(self.name, network)
        with self.memory.loading(self.name):
            if not decoder_class.sizes_pages:
                return decoder_class(network.to(self.device), pool, **options)
            decoder = decoder_class(network.to(self.device), pool, **options, has_pages=False)
            request_pages(decoder, self.memory, self.name, pages)
        return decoder

    def _decoder_class(self) -> type[Decoder]:
        from mstar.nn.lm.decoder import Decoder

        return Decoder

    def make_state(self, kind: type[S]) -> S:  # noqa: ARG002 - there is one kind
        """Create an empty KV cache."""
        return cast("S", self.decoder.new_cache(self._vocabulary()))

    def load_state(self, kind: type[S], exported: Any) -> S:
        """Create a KV cache from an exported one."""
        state = self.make_state(kind)
        cast("PagedKV", state).load(exported)
        return state

    def prepare(self) -> None:
        """Load the network and the vocabulary for grammars. With `memory`, the worker allocates the pages later."""
        if attention := self.decoder.attention_description:
            log.info("%s: %s", self.name, attention)
        if self.adapters:
            self.decoder.adapters.preload(self.adapters)
        if (vocabulary := self._vocabulary()) is not None:
            vocabulary.prepare()

    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch; empty if it cannot, or if it is not loaded."""
        if self.operator_settings.get("engine") == VLLM:
            return "vLLM computes it"
        if self.expert_process is not None:
            return "another process computes its experts"
        return self.decoder.nondeterminism if "decoder" in vars(self) else ""

    def load_experts(self) -> list[Any]:
        """The modules with the experts of each layer, for a process that computes nothing else."""
        from mstar.nn.lm.remote_experts import take_experts

        return take_experts(self._loader.with_settings(self.operator_settings).load_uncached().eval())

    def preload(self) -> None:
        """Import torch, and map the weights if the graph cache has them."""
        self._decoder_class()
        self._loader.preload()

    def memory_stats(self) -> dict[str, int]:
        """Number of KV cache pages, used and in total; prompt tokens looked up and found in the prefix cache; positions
        of caches of other workers that were sent while the rest was computed."""
        used, pages, prefixes = 0, self._sizes[0] or DEFAULT_PAGES, dict[str, int]()
        if "decoder" in vars(self):
            store = self.decoder.store
            used, pages = store.page_counts()
            if store.prefix_hits:
                prefixes = {"prefix_cache_queries": store.prefix_queries, "prefix_cache_hits": store.prefix_hits}
            if store.moved_ahead:
                prefixes["positions_moved_ahead"] = store.moved_ahead
            if (speculation := self.decoder.speculation) is not None:
                prefixes |= {"draft_tokens": speculation.drafted, "draft_tokens_accepted": speculation.accepted}
        experts = {} if self.expert_process is None else {"expert_bytes": self.expert_process.bytes_moved}
        return {"pages_used": used, "pages": pages} | prefixes | experts

    def restore(self, states: Sequence[State]) -> None:
        """Swap evicted KV caches back in, or recompute them."""
        self.decoder.restore(cast("Sequence[PagedKV]", states))

    @op(batch=ragged("T"), chunked=True)
    def next_token(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Append tokens to the KV cache; return the sampled next token."""
        decoder, caches, params = self.decoder, _caches(kv), rows(sampling)
        if decoder.ahead is not None:
            return decoder.ahead.next_tokens(tokens, caches, params, layout)
        return decoder.next_token(tokens, caches, params, layout)[0]

    @op(batch=ragged("T"), chunked=True)
    def next_token_scored(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "1"], Logprobs | None]:
        """Do the same, and return the logprobs too if `sampling.logprobs` is set."""
        from mstar.nn.lm.sampler import compute_logprobs

        params = rows(sampling)
        sampled, logits = self.decoder.next_token(tokens, _caches(kv), params, layout)
        return sampled, cast("Any", compute_logprobs(logits, params, sampled))

    @op(batch=ragged("T"), chunked=True)
    def next_token_from_embeddings(
        self, embeddings: Float[Tensor, "T D"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Append embeddings, for example of images, to the KV cache; return the sampled next token."""
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
        """Do the same for embeddings with content ids: token ids, or hashes of other content (`hash_embeddings`).

        Content ids are the keys of the prefix cache, so requests share embeddings like tokens.
        """
        return self.decoder.next_token(embeddings, _caches(kv), rows(sampling), layout, content_ids)[0]

    @op(batch=ragged("T"), chunked=True)
    def hidden_states(self, tokens: Int64[Tensor, "T"], kv: KV, layout: Layout = ONE_ROW) -> Float[Tensor, "T D"]:
        """Append tokens to the KV cache; return their last hidden states."""
        return self.decoder.hidden_states(tokens, _caches(kv), layout)

    @op(batch=ragged("T"), chunked=True)
    def hidden_states_from_embeddings(
        self, embeddings: Float[Tensor, "T D"], kv: KV, layout: Layout = ONE_ROW
    ) -> Float[Tensor, "T D"]:
        """Append embeddings to the KV cache; return their last hidden states."""
        return self.decoder.hidden_states(embeddings, _caches(kv), layout)

    @op(batch=ragged("T"))
    def attend_only(
        self, embeddings: Float[Tensor, "T D"], kv: View[KV], layout: Layout = ONE_ROW
    ) -> Float[Tensor, "T D"]:
        """Hidden states of embeddings that attend to the KV cache and, bidirectionally, to each other.

        The KV cache is not changed. This is a denoising step of a flow matching head that shares the backbone.
        """
        return self.decoder.attend_only(embeddings, _caches(kv), layout)

    @op(batch=ragged("T"))
    def embed(self, tokens: Int64[Tensor, "T"]) -> Float[Tensor, "T D"]:
        """Embeddings of tokens."""
        return self.decoder.embed(tokens)

    @op(batch=stacked)
    def is_end(self, token: Int64[Tensor, "1"], sampling: Sampling | None = None) -> Bool[Tensor, ""]:
        """Whether this token ends the output: end-of-sequence, or a stop token of the request."""
        import torch

        stops = [(*self.eos_token_ids, *(params.stop_token_ids if params else ())) for params in rows(sampling)]
        return torch.tensor([last in stop for last, stop in zip(token[:, 0].tolist(), stops, strict=True)])


def _caches(kv: KV) -> list[PagedKV]:
    return list(cast("Sequence[PagedKV]", rows(kv)))


def _decoder_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Options of a decoder from the settings of a placement. Raises LoadError."""
    options: dict[str, Any] = {
        name: settings[name] for name in ("attention_backend", "kv_cache_dtype") if name in settings
    }
    if (text := settings.get("speculative_tokens")) is not None:
        if not (text.isascii() and text.isdecimal()):
            fix = 'set it to a number of tokens, such as "8"'
            raise LoadError(f"speculative_tokens is {text!r}\n  fix: {fix}")
        options["speculative_tokens"] = int(text)
    return options
