"""Graph capture of decoders: a transformers model becomes a flat list of tensor operations (CUDA-graph-like, on CPUs).

`torch.export` captures the model's own code with dynamic shapes. Then matrices with the same input are merged (fused
QKV and gate/up projections), operators are fused (`mstar.nn.compile.fusion`), and weights are packed for the CPU or
quantized to int8. It works on graphs only and knows no model by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, export
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen

from mstar.nn import native
from mstar.nn.compile import int8
from mstar.nn.compile.fusion import fuse, value_of
from mstar.nn.kv.paged_attention import DIRECT_CALLS, attend_running

aten = torch.ops.aten
_MAX_TOKENS = 1 << 16
"""Maximum number of tokens of a forward."""


class _DecoderForward(torch.nn.Module):
    """The captured function: embeddings and positions of all tokens to logits of some tokens and all hidden states."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, embeddings: Tensor, positions: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        output = self.network(
            inputs_embeds=embeddings,
            position_ids=positions,
            logits_to_keep=last,
            use_cache=False,
            output_hidden_states=True,
        )
        return output.logits[0], output.hidden_states[-1][0]


def eager_forward(network: Any) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The decoder without graph capture: (embeddings, positions, last) -> (logits, hidden states)."""
    return _DecoderForward(network)


def flatten(
    network: Any, *, is_int8: bool = False
) -> tuple[Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], int | None]:
    """Capture the same function as a flat graph; return it with the largest sliding window if every layer has one.

    `is_int8` quantizes the weights, which needs the native kernels. Raises the error of torch.export for a network with
    data-dependent control flow.
    """
    embed = network.get_input_embeddings()
    weight = embed.weight
    # The embedding is not called: a tensor-parallel one would wait for an all-reduce of the other ranks.
    width, dtype = getattr(embed, "width", weight.shape[-1]), getattr(embed, "dtype", weight.dtype)
    example = (torch.zeros((1, 7, width), dtype=dtype), torch.arange(7)[None], torch.tensor([2, 6, 3]))
    tokens, rows = Dim("tokens", min=1, max=_MAX_TOKENS), Dim("rows", min=1, max=_MAX_TOKENS)
    dynamic_shapes = ({1: tokens}, {1: tokens}, {0: rows})
    with torch.no_grad():  # else every no_grad section becomes a nested graph
        exported = export(_DecoderForward(network), example, dynamic_shapes=dynamic_shapes, strict=False)
    module = exported.module(check_guards=False)
    assert isinstance(module, GraphModule)
    graph = module.graph
    graph.set_codegen(CodeGen())  # plain arguments and results, without pytrees
    _simplify(graph)
    windows = [node.args[5] for node in graph.nodes if node.target is attend_running]
    if native.is_native(weight.dtype, weight.device):
        _merge_linears(module)
        fuse(graph)
        _pack(module, is_int8=is_int8)
    graph.eliminate_dead_code()
    _keep_only_used(module)
    module.recompile()
    return module.forward, max(windows) if windows and all(windows) else None


def _simplify(graph: Graph) -> None:
    for node in list(graph.nodes):
        if node.target in (aten._assert_tensor_metadata.default, aten._assert_scalar.default) or (
            node.op == "call_module" and not node.users
        ):
            graph.erase_node(node)
        elif node.target in DIRECT_CALLS:
            node.target = DIRECT_CALLS[node.target]


# ---------------------------------------------------------------- matrices
def _parameter(module: GraphModule, node: Any) -> Tensor | None:
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _merge_linears(module: GraphModule) -> None:
    """Merge matrix products with the same input into one product, whose output is sliced (fused QKV, gate/up)."""
    graph = module.graph
    readers: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.target is aten.linear.default and _parameter(module, node.args[1]) is not None:
            readers[node.args[0]].append(node)
    for source, linears in readers.items():
        has_bias = {len(node.args) > 2 and node.args[2] is not None for node in linears}
        if len(linears) < 2 or len(has_bias) > 1:
            continue
        merged = [
            torch.cat([_parameter(module, node.args[index]) for node in linears])  # type: ignore[misc]
            for index in range(1, 3 if has_bias.pop() else 2)
        ]
        with graph.inserting_before(linears[0]):
            parts = [_constant(module, tensor) for tensor in merged]
            product = graph.call_function(aten.linear.default, (source, *parts))
            like = value_of(linears[0])
            product.meta["val"] = like.new_empty((*like.shape[:-1], len(merged[0])))
            first = 0
            for node in linears:
                last = first + value_of(node).shape[-1]
                columns = graph.call_function(aten.slice.Tensor, (product, like.ndim - 1, first, last))
                columns.meta = dict(node.meta)
                node.replace_all_uses_with(columns)
                first = last


def _constant(module: GraphModule, value: Tensor) -> Node:
    name = f"constant_{len(vars(module))}"
    vars(module)[name] = value
    node = module.graph.create_node("get_attr", name)
    node.meta["val"] = value
    return node


def _pack(module: GraphModule, *, is_int8: bool) -> None:
    """Pack each weight in the layout of the fastest matrix product for it: int8, native tiles, or oneDNN."""
    for node in list(module.graph.nodes):
        weight = _parameter(module, node.args[1]) if node.target is aten.linear.default else None
        if weight is None:
            continue
        with module.graph.inserting_before(node):
            bias = node.args[2] if len(node.args) > 2 else None
            if is_int8:
                parts = [_constant(module, part) for part in int8.pack(weight)]
                node.target, node.args = native.linear_int8, (node.args[0], *parts, bias)
            elif weight.dtype is torch.bfloat16 and not native.supports_bf16_matmul():
                packed = _constant(module, native.to_tiles(weight))
                node.target, node.args = native.linear, (node.args[0], packed, len(weight), bias)
            elif weight.dtype is torch.bfloat16 or weight.numel() >= _MIN_PACKED_ELEMENTS:
                packed = _constant(module, torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_ROWS))
                node.target = torch.ops.mkldnn._linear_pointwise.default
                node.args = (node.args[0], packed, bias, "none", [], "")


_MIN_PACKED_ELEMENTS = 1 << 23
"""Minimum size of a float32 matrix to pack. For few rows an unpacked product of this size takes twice as long; smaller
matrices stay in the CPU cache and are faster unpacked."""
_PACKED_ROWS = 16
"""Expected number of rows of a product; the packed layout hardly depends on it."""


def _keep_only_used(module: GraphModule) -> None:
    """Free replaced weights, and store the others in the instance dict: attribute lookup of a module is slow."""
    used = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            name = f"used_{len(used)}"
            used[name] = _parameter(module, node)
            node.target = name
    for name in [name for name in vars(module) if name.startswith("constant_")]:
        del vars(module)[name]
    for registered in (module._parameters, module._buffers, module._modules):
        registered.clear()
    vars(module).update(used)
