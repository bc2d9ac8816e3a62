"""A stand-in for the module `flashinfer`: the calls that mstar makes, computed with plain torch on any device.

Arguments are bound by the signatures of the wheel (`flashinfer_signatures.json`), and must have the types and places
that its kernels require. A plan copies to the device what that of FlashInfer copies; a run reads nothing else, and does
not wait for the device, so that a graph can hold it.
"""

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TABLE = json.loads((Path(__file__).parent / "flashinfer_signatures.json").read_text())


def _signature(rows: list[dict[str, str]]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(
                row["name"],
                getattr(inspect.Parameter, row["kind"]),
                default=ast.literal_eval(row["default"]) if "default" in row else inspect.Parameter.empty,
            )
            for row in rows
        ]
    )


SIGNATURES = {name: _signature(rows) for name, rows in TABLE["signatures"].items()}


def bind(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """All arguments of a call by name. Raises TypeError for one that the function does not have."""
    given = SIGNATURES[name].bind(*args, **kwargs)
    given.apply_defaults()
    return given.arguments


def append_paged_kv_cache(*args: Any, **kwargs: Any) -> None:
    given = bind("append_paged_kv_cache", *args, **kwargs)
    assert given["kv_layout"] == "NHD"
    indices = {name: given[name] for name in ("batch_indices", "positions", "kv_indices", "kv_indptr")}
    for tensor in (*indices.values(), given["kv_last_page_len"]):
        assert tensor.dtype == torch.int32
        assert tensor.dim() == 1
        assert tensor.is_contiguous()
        assert tensor.device == given["append_key"].device
    assert len(given["kv_indptr"]) == len(given["kv_last_page_len"]) + 1
    assert len(indices["batch_indices"]) == len(indices["positions"]) == len(given["append_key"])
    keys, values = given["paged_kv_cache"]
    assert keys.stride() == values.stride()
    for cache, new in zip((keys, values), (given["append_key"], given["append_value"]), strict=True):
        assert cache.dim() == 4
        assert new.dtype == cache.dtype, "the kernel reads the memory as the dtype of the cache"
        assert new.shape[1:] == cache.shape[2:]
        assert new.stride(-1) == 1
        size, positions = cache.shape[1], indices["positions"].long()
        page = indices["kv_indices"][indices["kv_indptr"][indices["batch_indices"]] + positions // size]
        cache[page.long(), positions % size] = new


class _Wrapper:
    """What the wrappers of prefill and decode share."""

    DTYPES: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    HEAD_SIZES: tuple[int, ...] = (64, 128, 256)
    plans = 0
    """Number of calls of `plan`."""

    def _init(self, given: dict[str, Any]) -> None:
        workspace = given["float_workspace_buffer"]
        assert workspace.dtype == torch.uint8
        assert given["kv_layout"] == "NHD"
        self.device = workspace.device
        self._given: dict[str, Any] = {}

    def reset_workspace_buffer(self, *args: Any, **kwargs: Any) -> None:
        given = bind(f"{type(self).__name__}.reset_workspace_buffer", self, *args, **kwargs)
        for name in ("float_workspace_buffer", "int_workspace_buffer"):
            assert given[name].dtype == torch.uint8
            assert given[name].device == self.device

    def _check_plan(self, given: dict[str, Any], pages: tuple[Tensor, Tensor, Tensor], size: int) -> None:
        """What plans and kernels require: integers of 32 bits on the host, and known types and sizes."""
        type(self).plans += 1
        self._given = given
        indptr, indices, last_page_len = pages
        assert {tensor.dtype for tensor in pages} == {torch.int32}
        assert indptr.device.type == last_page_len.device.type == "cpu", "the planner reads them"
        indices = getattr(indices, "held", indices)  # not a copy that counts
        counts = indptr.diff()
        assert indptr[0] == 0
        assert indptr[-1] == len(indices)
        assert len(last_page_len) == len(indptr) - 1
        assert (counts >= 1).all()
        assert (indices >= 0).all(), "a released page is read"
        assert ((last_page_len >= 1) & (last_page_len <= given["page_size"])).all()
        assert size in self.HEAD_SIZES
        assert given["q_data_type"] in self.DTYPES
        assert given["kv_data_type"] in {given["q_data_type"], torch.float8_e4m3fn}
        assert given["num_qo_heads"] % given["num_kv_heads"] == 0
        self._size, self._max_pages = size, int(counts.max())

    def _check_run(self, given: dict[str, Any]) -> None:
        query, plan = given["q"], self._given
        assert query.dtype == plan["q_data_type"]
        assert query.shape[1:] == (plan["num_qo_heads"], self._size)
        assert query.stride(-1) == 1
        for cache in given["paged_kv_cache"]:
            assert cache.dtype == plan["kv_data_type"]
            assert cache.shape[1:] == (plan["page_size"], plan["num_kv_heads"], self._size)

    def _attend(self, query: Tensor, caches: Any, requests: Tensor, after: Tensor, *, is_causal: bool) -> Tensor:
        """Attention of tokens of these requests, which are followed by `after` tokens of the same one."""
        plan, (indptr, indices, last_page_len) = self._given, self._pages
        lengths = ((indptr[1:] - indptr[:-1] - 1) * plan["page_size"] + last_page_len)[requests]
        own = lengths - 1 - after
        numbers = indptr[:-1][requests][:, None] + torch.arange(self._max_pages, device=query.device)
        pages = indices[numbers.clamp(max=len(indices) - 1)].long()
        keys, values = (cache[pages].flatten(1, 2).float() for cache in caches)
        queries = query.float().unflatten(1, (keys.shape[2], -1))
        scores = torch.einsum("thgd,tnhd->thgn", queries, keys) * plan["sm_scale"]
        if plan["logits_soft_cap"]:
            scores = (scores / plan["logits_soft_cap"]).tanh() * plan["logits_soft_cap"]
        positions = torch.arange(keys.shape[1], device=query.device)
        mask = positions < lengths[:, None]
        if is_causal:
            mask = mask & (positions <= own[:, None])
        if plan["window_left"] >= 0:
            mask = mask & (positions >= own[:, None] - plan["window_left"])
        weights = scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)
        values = values.masked_fill(~mask[:, :, None, None], 0)  # a masked value can be any
        return torch.einsum("thgn,tnhd->thgd", weights, values).flatten(1, 2).to(query.dtype)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = bind("BatchPrefillWithPagedKVCacheWrapper.__init__", self, *args, **kwargs)
        self._init(given)
        assert not given["use_cuda_graph"]

    def plan(self, *args: Any, **kwargs: Any) -> None:
        given = bind("BatchPrefillWithPagedKVCacheWrapper.plan", self, *args, **kwargs)
        pages = given["paged_kv_indptr"], given["paged_kv_indices"], given["paged_kv_last_page_len"]
        self._check_plan(given, pages, given["head_dim_qk"])
        assert given["head_dim_vo"] in {None, given["head_dim_qk"]}
        assert given["qo_indptr"].dtype == torch.int32
        assert given["qo_indptr"].device.type == "cpu"
        self._tokens = int(given["qo_indptr"][-1])
        self._pages = tuple(tensor.to(self.device, non_blocking=given["non_blocking"]) for tensor in pages)
        self._indptr = given["qo_indptr"].to(self.device, non_blocking=given["non_blocking"])

    def run(self, *args: Any, **kwargs: Any) -> Tensor:
        given = bind("BatchPrefillWithPagedKVCacheWrapper.run", self, *args, **kwargs)
        self._check_run(given)
        query, caches = given["q"], given["paged_kv_cache"]
        assert len(query) == self._tokens
        tokens = torch.arange(self._tokens, device=query.device, dtype=torch.int32)
        requests = torch.searchsorted(self._indptr[1:].contiguous(), tokens, right=True)
        after = self._indptr[1:][requests] - 1 - tokens
        return self._attend(query, caches, requests, after, is_causal=self._given["causal"])


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = bind("BatchDecodeWithPagedKVCacheWrapper.__init__", self, *args, **kwargs)
        self._init(given)
        names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
        self._buffers = tuple(given[name] for name in names) if given["use_cuda_graph"] else None
        for buffer in self._buffers or ():
            assert buffer.dtype == torch.int32
            assert buffer.device == self.device

    def plan(self, *args: Any, **kwargs: Any) -> None:
        bind("BatchDecodeWithPagedKVCacheWrapper.plan", self, *args, **kwargs)
        given = bind("BatchDecodeWithPagedKVCacheWrapper._plan_impl", self, *args, **kwargs)
        pages = given["indptr"], given["indices"], given["last_page_len"]
        self._check_plan(given, pages, given["head_dim"])
        if self._buffers is None:
            self._pages = tuple(tensor.to(self.device, non_blocking=given["non_blocking"]) for tensor in pages)
            return
        self._pages = self._buffers
        assert len(given["indptr"]) == len(self._buffers[0]), "the batch size is fixed"
        assert len(given["last_page_len"]) == len(self._buffers[2])
        for tensor, buffer in zip(pages, self._buffers, strict=True):
            is_async = tensor is not given["indices"] or tensor.device == self.device
            buffer[: len(tensor)].copy_(tensor, non_blocking=is_async and given["non_blocking"])
        self._max_pages = len(self._buffers[1]) // len(self._buffers[2])

    def run(self, *args: Any, **kwargs: Any) -> Tensor:
        given = bind("BatchDecodeWithPagedKVCacheWrapper.run", self, *args, **kwargs)
        self._check_run(given)
        query, caches = given["q"], given["paged_kv_cache"]
        assert len(query) == len(self._pages[2])
        requests = torch.arange(len(query), device=query.device)
        return self._attend(query, caches, requests, torch.zeros_like(requests), is_causal=False)
