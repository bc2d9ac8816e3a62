"""The `flashinfer` attention backend: paged attention by the kernels of FlashInfer. It has never run on a GPU.

A wrapper of FlashInfer plans a batch on the host once per step, and runs once per layer. A plan is made for a batch and
a rule (heads, window, soft cap, scale), so layers with different rules have a wrapper each. Pages are
[pages, page size, heads, size], the layout that FlashInfer calls NHD.

| batch | wrapper |
|---|---|
| one new token per request | `BatchDecodeWithPagedKVCacheWrapper`, in a captured step with fixed buffers |
| others | `BatchPrefillWithPagedKVCacheWrapper`: causal, or each token sees all positions of its request |
| bidirectional reads in a network with sliding windows | the fallback: FlashInfer counts windows from the token |

Not done here: attention sinks, other head sizes (`FlashInferAttention.unsupported`), and sampling: FlashInfer draws
with a seed and an offset for the whole batch, mstar with the seed and the position of each request.

Importing this module imports flashinfer.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import flashinfer  # pyright: ignore[reportMissingImports] - optional
import numpy as np
import torch
from torch import Tensor

from mstar.nn.kv.attention_backend import AttentionBackend, AttentionPlan, LayerNeeds, View
from mstar.nn.kv.cache_dtype import to_cache_dtype

DTYPES = (torch.bfloat16, torch.float16)
"""Dtypes of networks. A KV cache has the same one, or fp8."""
HEAD_SIZES = (64, 128, 256)
"""Sizes of heads that the kernels are compiled for."""
WORKSPACE_BYTES = 394 << 20
"""Memory for the results of split requests, which all wrappers share; the size that vLLM gives it."""
_GRAPH_PLAN_BYTES = 1 << 20
"""Memory for the plan of a captured step."""
_LAYOUT = "NHD"


class Rule(NamedTuple):
    """What a wrapper is planned for beside the batch: all that can differ between layers."""

    query_heads: int
    heads: int
    size: int
    scaling: float
    window: int
    softcap: float
    dtype: torch.dtype
    cache_dtype: torch.dtype


class FlashInferPlan:
    """Description of a batch: the page table without released pages, and where its new tokens are."""

    def __init__(self, view: View) -> None:
        self.page_size = size = view.store.pool.page_size
        self.is_causal: bool = view.is_causal
        counts, tables = view.counts, [cache.table for cache in view.caches]
        self.is_decode = self.is_causal and int(counts.max()) == 1
        pages = [table.pages[table.forgotten :] for table in tables]
        lengths = np.array([table.length - table.forgotten * size for table in tables])
        ends = counts.cumsum()
        requests = np.arange(len(counts)).repeat(counts)
        positions = np.arange(ends[-1]) + (lengths - ends).repeat(counts)
        indptr, indices = _indptr([len(part) for part in pages]), np.concatenate(pages)
        self.graph_pages = len(tables) * (view.min_positions // size)
        """Size of the buffer for page numbers if the step is captured; 0 if it is not."""
        padded = np.pad(indices, (0, max(0, self.graph_pages - len(indices))))
        parts = [np.asarray(part, np.int32) for part in (requests, positions, padded, indptr, (lengths - 1) % size + 1)]
        self._sizes = [len(part) for part in parts]
        packed = np.concatenate([*parts, np.zeros(sum(self._sizes) % 2, np.int32)])
        self.arrays: tuple[Tensor, ...] = (torch.from_numpy(packed.view(np.int64)),)
        """All of it for `append_paged_kv_cache`, two integers of 32 bits in one of 64."""
        self.rows, self._page_count = len(tables), len(indices)
        self._host = [torch.from_numpy(part) for part in (_indptr(counts), parts[3], parts[4])]

    @functools.cached_property
    def on_device(self) -> tuple[Tensor, ...]:
        """Requests and positions of the new tokens; page numbers, their starts, and lengths of last pages."""
        (packed,) = self.arrays
        return packed.view(torch.int32)[: sum(self._sizes)].split(self._sizes)

    @property
    def described(self) -> tuple[Tensor, ...]:
        """First arguments of the `plan` of a wrapper: it reads all but the page numbers on the host."""
        starts, indptr, last_page_len = self._host
        pages = indptr, self.on_device[2][: self._page_count], last_page_len
        return pages if self.is_decode else (starts, *pages)


def _indptr(counts: Any) -> np.ndarray:
    """Starts of consecutive parts with these sizes, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


class _Wrapper:
    """A wrapper of FlashInfer, with the plan that it has."""

    def __init__(self, wrapper: Any, rule: Rule) -> None:
        self._wrapper, self._rule = wrapper, rule
        self._plan: FlashInferPlan | None = None
        self._copied: torch.cuda.Event | None = None

    def set_plan(self, plan: FlashInferPlan) -> None:
        """Plan a batch, unless it is the last one."""
        if self._plan is plan:
            return
        if self._copied is not None:
            self._copied.synchronize()  # the last plan is copied from the host memory that this one is written to
        rule = self._rule
        options: dict[str, Any] = {} if plan.is_decode else {"causal": plan.is_causal}
        self._wrapper.plan(
            *plan.described,
            *(rule.query_heads, rule.heads, rule.size, plan.page_size),
            **options,
            window_left=rule.window - 1,
            logits_soft_cap=rule.softcap,
            sm_scale=rule.scaling,
            q_data_type=rule.dtype,
            kv_data_type=rule.cache_dtype,
        )
        self._plan = plan
        if self._wrapper.device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self._wrapper.device))

    def run(self, query: Tensor, pages: tuple[Tensor, Tensor]) -> Tensor:
        """Attention of a layer, [tokens, heads, size]."""
        return self._wrapper.run(query, pages)


class FlashInferAttention(AttentionBackend):
    """Paged attention by FlashInfer on one device. `fallback` attends in batches that FlashInfer cannot describe."""

    name: ClassVar[str] = "flashinfer"
    is_partial: ClassVar[bool] = True

    def __init__(self, device: torch.device, fallback: AttentionBackend) -> None:
        self._device, self._fallback = device, fallback
        self._rules: dict[Rule, None] = {}
        """Rules of all layers that have run."""
        self._wrappers: dict[tuple[bool, bool, Rule], _Wrapper] = {}
        self._graph_wrappers = WeakValueDictionary[tuple[int, int, Rule], _Wrapper]()
        """Those of all graphs, which keep them."""
        self._graph_plans: dict[Rule, Tensor] = {}
        """Memory for the plan of a captured step. Steps of all sizes share it: each is planned before it runs."""

    def plan(self, view: View) -> Sequence[AttentionPlan]:
        """The plan of a forward."""
        if not view.is_causal and any(rule.window for rule in self._rules):
            return self._fallback.plan(view)
        return [FlashInferPlan(view)]

    def write(self, batch: View, key: Tensor, value: Tensor, layer: int) -> None:
        """Write the keys and values of all tokens, [1, heads, tokens, size], to their slots."""
        plan = _own_plan(batch)
        if plan is None:
            self._fallback.write(batch, key, value, layer)
            return
        key, value = (_dense_rows(each[0].transpose(0, 1)) for each in (key, value))
        memory = batch.store.layer(layer, key, value)
        key, value = (to_cache_dtype(new, part.dtype) for new, part in zip((key, value), memory, strict=True))
        requests, positions, indices, indptr, last_page_len = plan.on_device
        flashinfer.append_paged_kv_cache(
            *(key, value, requests, positions, _pages(memory, plan.page_size)),
            *(indices, indptr, last_page_len),
            kv_layout=_LAYOUT,
        )

    def attend(  # noqa: PLR0913, PLR0917 - the interface
        self,
        view: View,
        query: Tensor,
        layer: int,
        scaling: float,
        window: int,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention over the pages: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
        plan = _own_plan(view)
        if plan is None:
            return self._fallback.attend(view, query, layer, scaling, window, softcap, sinks)
        keys, values = memory = view.store.keys[layer], view.store.values[layer]
        if problem := self.unsupported([LayerNeeds(keys.shape[2], values.shape[2], sinks is not None)]):
            raise NotImplementedError(f"the attention backend flashinfer does not support {problem}")
        query = _dense_rows(query[0].transpose(0, 1))
        _, heads, size = keys.shape
        rule = Rule(query.shape[1], heads, size, scaling, window, softcap, query.dtype, keys.dtype)
        self._rules[rule] = None
        return self._wrapper(plan, rule).run(query, _pages(memory, plan.page_size))[None]

    def prepare_graph(self, view: View) -> object:
        """Plan a captured step, for every rule: its wrappers copy the plan to their fixed buffers. Returns these."""
        (plan,) = view.plan
        wrappers = list[_Wrapper]()
        for rule in self._rules:
            key = plan.rows, plan.graph_pages, rule
            wrapper = self._graph_wrappers.get(key)
            if wrapper is None:
                wrapper = self._graph_wrappers[key] = _Wrapper(self._new_graph_wrapper(*key), rule)
            wrapper.set_plan(plan)
            wrappers.append(wrapper)
        return wrappers

    def unsupported(self, needs: Collection[LayerNeeds]) -> str:
        """What a network with these layers needs and FlashInfer does not have in this form."""
        for layer in sorted(needs):
            if layer.has_sinks:
                return "attention sinks"
            if layer.key_size != layer.value_size:
                return f"keys of size {layer.key_size} with values of size {layer.value_size}"
            if layer.key_size not in HEAD_SIZES:
                return f"heads of size {layer.key_size}"
        return ""

    def _wrapper(self, plan: FlashInferPlan, rule: Rule) -> _Wrapper:
        """The wrapper that has this plan. A captured step must not plan: `prepare_graph` has done it."""
        if plan.graph_pages:
            return self._graph_wrappers[plan.rows, plan.graph_pages, rule]
        key = plan.is_decode, plan.is_causal, rule  # cross-attention and self-attention alternate in a forward
        if key not in self._wrappers:
            self._wrappers[key] = _Wrapper(self._new_wrapper(is_decode=plan.is_decode), rule)
        self._wrappers[key].set_plan(plan)
        return self._wrappers[key]

    @functools.cached_property
    def _workspace(self) -> Tensor:
        return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)

    def _new_wrapper(self, *, is_decode: bool) -> Any:
        if not is_decode:
            return flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, _LAYOUT)
        return flashinfer.BatchDecodeWithPagedKVCacheWrapper(self._workspace, _LAYOUT, use_tensor_cores=True)

    def _new_graph_wrapper(self, rows: int, pages: int, rule: Rule) -> Any:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            *(self._workspace, _LAYOUT),
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=torch.zeros(rows + 1, dtype=torch.int32, device=self._device),
            paged_kv_indices_buffer=torch.zeros(pages, dtype=torch.int32, device=self._device),
            paged_kv_last_page_len_buffer=torch.ones(rows, dtype=torch.int32, device=self._device),
        )
        if rule not in self._graph_plans:
            self._graph_plans[rule] = torch.zeros(_GRAPH_PLAN_BYTES, dtype=torch.uint8, device=self._device)
        wrapper.reset_workspace_buffer(self._workspace, self._graph_plans[rule])
        return wrapper


def _own_plan(view: View) -> FlashInferPlan | None:
    """The plan of a batch; None if the fallback has planned it."""
    plan = view.plan[0]
    return plan if isinstance(plan, FlashInferPlan) else None


def _pages(memory: tuple[Tensor, Tensor], page_size: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a layer as [pages, page size, heads, size]."""
    keys, values = memory
    return keys.unflatten(0, (-1, page_size)), values.unflatten(0, (-1, page_size))


def _dense_rows(x: Tensor) -> Tensor:
    """The same tensor, with adjacent elements in the last dimension."""
    return x if x.stride(-1) == 1 else x.contiguous()
