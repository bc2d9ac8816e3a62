"""Flattening: a library's decoder as one straight list of tensor operations, with known sequences fused.

`torch.export` records what the library's own code does, for any number of tokens. Then matrices are packed for the
processor, those that read the same input become one, and what surrounds them is fused (`mstar.nn.compile.fusion`). Nothing here
knows a model by name.
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
"""No forward has more tokens than this."""


class _DecoderForward(torch.nn.Module):
    """What is recorded: embeddings and positions of all tokens to logits of some of them, and all hidden states."""

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
    """The decoder run by the library's own code: (embeddings, positions, last) -> (logits, hidden states)."""
    return _DecoderForward(network)


def flatten(
    network: Any, *, is_int8: bool = False
) -> tuple[Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], int | None]:
    """The same function, flat, and how many positions its attention sees if that is limited in every layer.

    With `is_int8` its products with weights are in 8-bit integers, which needs the fused kernels.
    Raises what torch.export raises for a network whose steps depend on its values.
    """
    embed = network.get_input_embeddings()
    weight = embed.weight
    # It is not asked for embeddings: one that is shared by ranks would have to add up with those who are not here.
    width, dtype = getattr(embed, "width", weight.shape[-1]), getattr(embed, "dtype", weight.dtype)
    example = (torch.zeros((1, 7, width), dtype=dtype), torch.arange(7)[None], torch.tensor([2, 6, 3]))
    tokens, rows = Dim("tokens", min=1, max=_MAX_TOKENS), Dim("rows", min=1, max=_MAX_TOKENS)
    open_sizes = ({1: tokens}, {1: tokens}, {0: rows})
    with torch.no_grad():  # else every part that says so itself is recorded as a graph of its own
        recorded = export(_DecoderForward(network), example, dynamic_shapes=open_sizes, strict=False)
    module = recorded.module(check_guards=False)
    assert isinstance(module, GraphModule)
    graph = module.graph
    graph.set_codegen(CodeGen())  # plain arguments in, plain results out
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
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _merge_linears(module: GraphModule) -> None:
    """Products of one input with several matrices become one product, cut in columns."""
    graph = module.graph
    readers: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.target is aten.linear.default and _parameter(module, node.args[1]) is not None:
            readers[node.args[0]].append(node)
    for source, linears in readers.items():
        has_bias = {len(node.args) > 2 and node.args[2] is not None for node in linears}
        if len(linears) < 2 or len(has_bias) > 1:
            continue
        joined = [
            torch.cat([_parameter(module, node.args[place]) for node in linears])  # type: ignore[misc]
            for place in range(1, 3 if has_bias.pop() else 2)
        ]
        with graph.inserting_before(linears[0]):
            parts = [_constant(module, tensor) for tensor in joined]
            together = graph.call_function(aten.linear.default, (source, *parts))
            like = value_of(linears[0])
            together.meta["val"] = like.new_empty((*like.shape[:-1], len(joined[0])))
            first = 0
            for node in linears:
                last = first + value_of(node).shape[-1]
                cut = graph.call_function(aten.slice.Tensor, (together, like.ndim - 1, first, last))
                cut.meta = dict(node.meta)
                node.replace_all_uses_with(cut)
                first = last


def _constant(module: GraphModule, value: Tensor) -> Node:
    name = f"constant_{len(vars(module))}"
    vars(module)[name] = value
    node = module.graph.create_node("get_attr", name)
    node.meta["val"] = value
    return node


def _pack(module: GraphModule, *, is_int8: bool) -> None:
    """Matrices in the order in which they are read, by whatever multiplies such ones fastest."""
    for node in list(module.graph.nodes):
        weight = _parameter(module, node.args[1]) if node.target is aten.linear.default else None
        if weight is None:
            continue
        with module.graph.inserting_before(node):
            bias = node.args[2] if len(node.args) > 2 else None
            if is_int8:  # half as much to read
                parts = [_constant(module, part) for part in int8.pack(weight)]
                node.target, node.args = native.linear_int8, (node.args[0], *parts, bias)
            elif weight.dtype is torch.bfloat16 and not native.supports_bf16_matmul():
                place = _constant(module, native.to_tiles(weight))
                node.target, node.args = native.linear, (node.args[0], place, len(weight), bias)
            elif weight.dtype is torch.bfloat16 or weight.numel() >= _MIN_PACKED_ELEMENTS:
                place = _constant(module, torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_ROWS))
                node.target = torch.ops.mkldnn._linear_pointwise.default
                node.args = (node.args[0], place, bias, "none", [], "")


_MIN_PACKED_ELEMENTS = 1 << 23
"""A matrix of so many float32 is packed, too: for a few rows the plain product takes twice as long. With smaller ones,
which stay in the cache, it is the other way round."""
_PACKED_ROWS = 16
"""How many rows a product is expected to have; the layout hardly depends on it."""


def _keep_only_used(module: GraphModule) -> None:
    """Let go of what was replaced, and hold the rest where Python finds it at once: a module's own search is slow."""
    held = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            name = f"held_{len(held)}"
            held[name] = _parameter(module, node)
            node.target = name
    for name in [name for name in vars(module) if name.startswith("constant_")]:
        del vars(module)[name]
    for registered in (module._parameters, module._buffers, module._modules):
        registered.clear()
    vars(module).update(held)
