"""VllmDecoder: a language model that vLLM runs, with its kernels and its quantization, behind the ops of `CausalLM`.

It has the part of `Decoder` that text generation needs: tokens in, logits out, sampled by mstar's sampler, so that
sampling parameters, seeds, grammars and log probabilities are those of every other decoder. The KV cache of a request
is a session of `VllmEngine`. A copy, a rollback, an export and an eviction keep the tokens only, and the next chunk
computes the KV cache again; vLLM finds most of it in its prefix cache.

vLLM pins other versions of transformers than mstar, so a worker with this decoder has an interpreter of its own
(`python` in the placement).
"""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from mstar.errors import LoadError, NeverFits, RowsFailed, Unsupported
from mstar.nn.lm.adapters.no_adapters import NoAdapters
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerSnapshot, SamplerState
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV

if TYPE_CHECKING:
    from mstar.nn.lm.vllm.vllm_engine import VllmEngine

_OTHER_SETTINGS = ("quantization", "attention_backend", "kv_cache_dtype", "speculative_tokens")
"""Settings of a component that do not apply to vLLM, which has arguments of its own for them."""


class VllmKV(KV):
    """KV cache of one request: a session of vLLM, and the sampler, whose history has all tokens."""

    is_evictable: ClassVar[bool] = True

    def __init__(self, engine: VllmEngine, sampler: SamplerState) -> None:
        self._engine = engine
        self.sampler = sampler
        self.session: int | None = None
        """None: the next chunk computes all tokens of the history."""
        self.length = 0
        """Number of tokens in the session."""
        self._finalizer: Any = None

    def open(self) -> int:
        """The session, which is new if there is none."""
        if self.session is None:
            self.session = self._engine.new_session()
            self._finalizer = weakref.finalize(self, self._engine.close, self.session)
        return self.session

    def close(self) -> None:
        """Close the session; the tokens stay."""
        if self.session is not None:
            self._finalizer()
            self.session, self.length = None, 0

    def fork(self) -> Self:
        """An independent copy."""
        forked = type(self)(self._engine, self.sampler.fork())
        forked.tenant, forked.is_resident = self.tenant, self.is_resident
        return forked

    def snapshot(self) -> Any:
        """The current position."""
        return self.sampler.snapshot(), self.length

    def rollback(self, snapshot: Any) -> None:
        """Drop the tokens since the snapshot."""
        position, length = snapshot
        self.sampler.rollback(position)
        if self.length != length:
            self.close()

    def export(self) -> SamplerSnapshot:
        """The tokens and the number of draws, for migration."""
        return self.sampler.export()

    def load(self, exported: SamplerSnapshot) -> None:
        """Load an exported state into this new one."""
        self.sampler.load(exported)

    def evict(self) -> None:
        """Release the pages. `VllmDecoder.restore` undoes it."""
        self.close()
        self.is_resident = False


class VllmDecoder:
    """A model of vLLM with the KV cache of all requests."""

    attention_description: ClassVar[str] = ""
    """Empty: vLLM prints its own."""
    ahead: ClassVar[None] = None
    """No step is launched ahead."""
    speculation: ClassVar[None] = None
    """No draft is verified."""
    adapters: ClassVar[NoAdapters] = NoAdapters("vLLM")

    def __init__(self, engine: VllmEngine) -> None:
        self.store = engine

    def new_cache(self, vocabulary: Vocabulary | None) -> VllmKV:
        """Create an empty KV cache."""
        return VllmKV(self.store, SamplerState(vocabulary))

    def restore(self, caches: Sequence[VllmKV]) -> None:
        """Mark evicted caches as usable: the next chunk computes them again."""
        for cache in caches:
            cache.is_resident = True

    @torch.inference_mode()
    def next_token(
        self,
        inputs: Tensor,
        caches: Sequence[VllmKV],
        params: Sequence[Sampling],
        layout: Layout,
        content_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Append the tokens of a ragged batch; return next tokens and logits. Unfinished rows get token 0."""
        if inputs.ndim > 1 or content_ids is not None:
            raise _unsupported("embeddings as inputs")
        self.adapters.reject(params)
        self._reject_too_long(caches, params, layout.lengths)
        for cache, tokens in zip(caches, inputs.split(list(layout.lengths)), strict=True):
            cache.sampler.append_tokens(tokens.tolist())
        chunks, tenants = dict[int, Sequence[int]](), dict[int, str]()
        for cache in caches:
            history, session = cache.sampler.history, cache.open()
            chunks[session], tenants[session] = history[cache.length :], cache.tenant
            cache.length = len(history)
        logits = torch.stack(self.store.run(chunks, tenants))
        finished = [row for row in range(len(caches)) if row not in layout.unfinished]
        sampled = torch.zeros((len(caches), 1), dtype=torch.int64)
        if finished:
            samplers = [caches[row].sampler for row in finished]
            sampled[finished] = sample_tokens(logits[finished], [params[row] for row in finished], samplers)
        return sampled, logits

    def _reject_too_long(self, caches: Sequence[VllmKV], params: Sequence[Sampling], lengths: Sequence[int]) -> None:
        """Reject new requests whose prompt and `max_tokens` exceed the context."""
        most, errors = self.store.max_tokens, dict[int, Exception]()
        for row, (cache, sampling) in enumerate(zip(caches, params, strict=True)):
            needed = len(cache.sampler.history) + lengths[row] + sampling.max_tokens - 1
            if cache.sampler.prompt_length is None and needed > most:
                problem = f"prompt and max_tokens are {needed} tokens, and vLLM holds {most} of a request"
                errors[row] = NeverFits(f"{problem}\n  fix: send less text, or a smaller max_tokens")
        if errors:
            raise RowsFailed(errors)

    def hidden_states(self, *_: Any) -> Tensor:
        """Raise Unsupported."""
        raise _unsupported("hidden states")

    def attend_only(self, *_: Any) -> Tensor:
        """Raise Unsupported."""
        raise _unsupported("attention without appending")

    def embed(self, *_: Any) -> Tensor:
        """Raise Unsupported."""
        raise _unsupported("embeddings of tokens")


def _unsupported(what: str) -> Unsupported:
    return Unsupported(f'vLLM does not offer {what}\n  fix: remove engine = "vllm" from the placement')


def load_vllm(  # noqa: PLR0913 - keyword arguments
    name: str,
    folder: Path | None,
    network: Callable[[], Any],
    *,
    settings: Mapping[str, str],
    cache_tokens: int,
    device_type: str,
    memory_share: float | None,
) -> VllmDecoder:
    """Load a model with vLLM: from its folder, or a network of transformers that is saved for it first."""
    for setting in _OTHER_SETTINGS:
        if setting in settings:
            problem = f'{name}: `{setting}` does not apply to engine = "vllm"'
            raise LoadError(f"{problem}\n  fix: remove it, and use `vllm_args` with an argument of `vllm serve`")
    try:
        from mstar.nn.lm.vllm.vllm_engine import VllmEngine
    except ImportError as error:
        problem = f'{name}: engine = "vllm" needs vLLM in the interpreter of its worker: {error}'
        raise LoadError(f"{problem}\n  fix: set `python` of the worker to an interpreter with vLLM") from error

    def load(folder: Path) -> VllmDecoder:
        defaults: dict[str, Any] = {"dtype": settings.get("dtype") or _weights_dtype(folder)}
        if memory_share is not None:
            defaults["gpu_memory_utilization"] = memory_share
        arguments = settings.get("vllm_args", "")
        return VllmDecoder(VllmEngine(folder, device_type, arguments, defaults, cache_tokens))

    if folder is not None:
        return load(folder)
    with tempfile.TemporaryDirectory() as temporary:  # vLLM reads the weights once
        network().save_pretrained(temporary)
        return load(Path(temporary))


def _weights_dtype(folder: Path) -> str:
    """Dtype in config.json, as for the other engines. vLLM would read float32 weights as bfloat16."""
    config = json.loads((folder / "config.json").read_bytes())
    return config.get("dtype") or config.get("torch_dtype") or "auto"
