"""Graph capture of decoders: a transformers model becomes a flat list of tensor operations (CUDA-graph-like, on CPUs).

`torch.export` captures the model's own code with dynamic shapes; of equal layers, two. Then matrices with the
same input are merged (fused QKV and gate/up projections), operators are fused (`mstar.nn.compile.fusion`), and weights
are packed for the CPU or quantized to int8. On a CPU the result of a token does not depend on the rest of its batch;
`mstar.nn.compile.batch_dependence` knows the exceptions. It works on graphs only and knows no model by name. The result
is a `FlatGraph`, which the graph cache can store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, export
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen

from mstar.nn import native
from mstar.nn.compile.batch_dependence import batch_dependence, multiply_outer_products
from mstar.nn.compile.captured_forward import CapturedForward
from mstar.nn.compile.elementwise import fix_elementwise
from mstar.nn.compile.flat_graph import FlatGraph, Recipe
from mstar.nn.compile.fusion import fuse, value_of
from mstar.nn.compile.repeated_layers import LayersDiffer, expand_repeated, recording_equal_layers_once
from mstar.nn.kv import attention_interface
from mstar.nn.kv.paged_attention import DIRECT_CALLS, attend_general, attend_running
from mstar.nn.lm.adapters.adapted_linear import adapt_linear
from mstar.nn.lm.adapters.low_rank import Linear

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


_ = attention_interface  # registers paged attention with transformers


def eager_forward(network: Any) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The decoder without graph capture: (embeddings, positions, last) -> (logits, hidden states)."""
    return _DecoderForward(network)


def flatten(network: Any, *, is_int8: bool = False, is_fused: bool = True) -> CapturedForward:
    """Capture the same function as a flat graph.

    `is_int8` quantizes the weights, which needs the native kernels. `is_fused` uses the native kernels where there are
    some; without it a CPU runs the graph of a device. Raises the error of torch.export for a network with
    data-dependent control flow.
    """
    flat, tensor = capture(network, is_int8=is_int8, is_fused=is_fused)
    return CapturedForward(flat.bind(tensor), flat.window, flat.linears, batch_dependence(flat.graph))


CapturedGraph = tuple[FlatGraph, Callable[[str], Tensor]]
"""A graph, and a function that returns its tensors by name."""


def capture(network: Any, *, is_int8: bool = False, is_fused: bool = True) -> CapturedGraph:
    """The flat graph of a network, and a function that returns its tensors by name. Raises as `flatten`."""
    embed = network.get_input_embeddings()
    weight = embed.weight
    # The embedding is not called: a tensor-parallel one would wait for an all-reduce of the other ranks.
    width, dtype = getattr(embed, "width", weight.shape[-1]), getattr(embed, "dtype", weight.dtype)
    device = weight.device
    example = (
        torch.zeros((1, 7, width), dtype=dtype, device=device),
        torch.arange(7, device=device)[None],
        torch.tensor([2, 6, 3], device=device),
    )
    tokens, rows = Dim("tokens", min=1, max=_MAX_TOKENS), Dim("rows", min=1, max=_MAX_TOKENS)
    dynamic_shapes = ({1: tokens}, {1: tokens}, {0: rows})
    forward = _DecoderForward(network)
    try:
        with recording_equal_layers_once(forward):
            module = _export(forward, example, dynamic_shapes)
        expand_repeated(module.graph)
    except LayersDiffer:
        module = _export(forward, example, dynamic_shapes)
    graph = module.graph
    graph.owning_module = None  # its constants become recipes, which are no attributes of the module
    _replace_custom_ops(graph)
    windows = [node.args[5] for node in graph.nodes if node.target in (attend_running, attend_general)]
    if is_fused and native.is_native(weight.dtype, weight.device):
        _transpose_weights(graph)
        _merge_linears(graph)
        fuse(graph)
        _pack(graph, is_int8=is_int8)
        fix_elementwise(graph)
        multiply_outer_products(graph)
    graph.eliminate_dead_code()
    window = max(windows) if windows and all(windows) else None

    def tensor(name: str) -> Tensor:
        """A tensor of the network, or a constant of its code."""
        return attrgetter(name)(forward if name.startswith("network.") else module)

    linears = _adapt_linears(graph, tensor)
    return FlatGraph(graph, _number_constants(graph), window, linears), tensor


def capture_plain(
    forward: torch.nn.Module, example: Tensor, dynamic: dict[int, Any], *, is_packed: bool = False
) -> CapturedGraph:
    """The graph of a module with one input, with its operations as they are, and a function that returns its tensors.

    `dynamic` are the dynamic dimensions of the input. `is_packed` packs its matrices, so that no row depends on others.
    Raises the error of torch.export.
    """
    module = _export(forward, (example,), (dynamic,))
    graph = module.graph
    graph.owning_module = None
    for node in graph.nodes:
        if node.target is aten.dropout.default:  # without training it returns its input, and is never dead code
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()
    if is_packed and native.is_native(example.dtype, example.device):
        _pack(graph, is_int8=False)
        graph.eliminate_dead_code()
    return FlatGraph(graph, _number_constants(graph), None), lambda name: attrgetter(name)(module)


def _export(forward: torch.nn.Module, example: tuple[Tensor, ...], dynamic_shapes: tuple[Any, ...]) -> GraphModule:
    with torch.no_grad():  # else every no_grad section becomes a nested graph
        module = export(forward, example, dynamic_shapes=dynamic_shapes, strict=False).module(check_guards=False)
    assert isinstance(module, GraphModule)
    module.graph.set_codegen(CodeGen())  # plain arguments and results, without pytrees
    _simplify(module.graph)
    return module


def _simplify(graph: Graph) -> None:
    for node in list(graph.nodes):
        if node.target in (aten._assert_tensor_metadata.default, aten._assert_scalar.default) or (
            node.op == "call_module" and not node.users
        ):
            graph.erase_node(node)


def _replace_custom_ops(graph: Graph) -> None:
    for node in graph.nodes:
        if node.target in DIRECT_CALLS:
            node.target = DIRECT_CALLS[node.target]


# ---------------------------------------------------------------- matrices
def _recipe(node: Any) -> Recipe | None:
    """Recipe of a node that is a constant tensor."""
    if not isinstance(node, Node) or node.op != "get_attr" or not isinstance(node.meta.get("val"), Tensor):
        return None
    return node.meta.get("recipe", ("tensor", str(node.target)))


def _transpose_weights(graph: Graph) -> None:
    """Make linear layers of products with a bias whose weight is [in, out], as in GPT-2."""
    for node in list(graph.nodes):
        if node.target is not aten.addmm.default or node.kwargs or len(node.args) != 3:
            continue
        bias, x, weight = node.args
        if (recipe := _recipe(weight)) is not None:
            with graph.inserting_before(node):
                value = value_of(weight)
                transposed = _constant(graph, ("transposed", recipe), value.new_empty(value.shape[::-1]))
            node.target, node.args = aten.linear.default, (x, transposed, bias)


def _merge_linears(graph: Graph) -> None:
    """Merge matrix products with the same input into one product, whose output is sliced (fused QKV, gate/up)."""
    readers: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.target is aten.linear.default and _recipe(node.args[1]) is not None:
            readers[node.args[0]].append(node)
    for source, linears in readers.items():
        has_bias = {len(node.args) > 2 and node.args[2] is not None for node in linears}
        if len(linears) < 2 or len(has_bias) > 1:
            continue
        with graph.inserting_before(linears[0]):
            parts = [
                _concatenated(graph, [node.args[index] for node in linears])
                for index in range(1, 3 if has_bias.pop() else 2)
            ]
            product = graph.call_function(aten.linear.default, (source, *parts))
            like = value_of(linears[0])
            product.meta["val"] = like.new_empty((*like.shape[:-1], len(value_of(parts[0]))))
            first = 0
            for node in linears:
                last = first + value_of(node).shape[-1]
                columns = graph.call_function(aten.slice.Tensor, (product, like.ndim - 1, first, last))
                columns.meta = dict(node.meta)
                node.replace_all_uses_with(columns)
                first = last


def _concatenated(graph: Graph, nodes: list[Any]) -> Node:
    values = [value_of(node) for node in nodes]
    merged = values[0].new_empty((sum(map(len, values)), *values[0].shape[1:]))
    return _constant(graph, ("concatenate", *(_recipe(node) for node in nodes)), merged)


def _constant(graph: Graph, recipe: Recipe, value: Tensor | None = None) -> Node:
    node = graph.create_node("get_attr", "constant")
    node.meta |= {"recipe": recipe, "val": value}
    return node


def _pack(graph: Graph, *, is_int8: bool) -> None:
    """Pack each weight for its matrix product: int8, native tiles or, in bf16 on CPUs with instructions, oneDNN."""
    for node in list(graph.nodes):
        recipe = _recipe(node.args[1]) if node.target is aten.linear.default else None
        if recipe is None:
            continue
        weight = value_of(node.args[1])
        with graph.inserting_before(node):
            bias = node.args[2] if len(node.args) > 2 else None
            if is_int8:
                parts = [_constant(graph, ("int8", which, recipe)) for which in range(2)]
                node.target, node.args = native.linear_int8, (node.args[0], *parts, bias)
            elif native.has_row_products(weight.dtype, weight.device):
                packed = _constant(graph, ("tiles", recipe))
                node.target, node.args = native.linear, (node.args[0], packed, len(weight), bias)
            else:
                packed = _constant(graph, ("onednn", recipe))
                node.target = torch.ops.mkldnn._linear_pointwise.default
                node.args = (node.args[0], packed, bias, "none", [], "")


def _adapt_linears(graph: Graph, tensor: Callable[[str], Tensor]) -> tuple[Linear, ...]:
    """Let adapters change each product of a weight with all tokens; return these products."""
    linears: list[Linear] = []
    tokens = str(next(value_of(node) for node in graph.nodes if node.op == "placeholder").shape[:-1])
    for node in list(graph.nodes):
        if node.target not in _PRODUCTS or str(value_of(node).shape[:-1]) != tokens:
            continue
        weight = node.args[1]
        recipe = weight.meta.get("recipe") or _recipe(weight)  # a packed weight has a recipe and no value
        if recipe is None:
            continue
        names = [*_tensor_names(recipe)]
        if not all(name.startswith(_NETWORK) and name.endswith(_WEIGHT) for name in names):
            continue
        columns = tuple((name[len(_NETWORK) : -len(_WEIGHT)], len(tensor(name))) for name in names)
        with graph.inserting_after(node):
            adapted = graph.call_function(adapt_linear, (node, node.args[0], len(linears)))
        adapted.meta = dict(node.meta)
        node.replace_all_uses_with(adapted, delete_user_cb=lambda user, adapted=adapted: user is not adapted)
        linears.append((tensor(names[0]).shape[1], columns))
    return tuple(linears)


_PRODUCTS = (aten.linear.default, torch.ops.mkldnn._linear_pointwise.default, native.linear, native.linear_int8)
_NETWORK, _WEIGHT = "network.", ".weight"


def _tensor_names(recipe: Recipe) -> Iterator[str]:
    """Names of the tensors of a packed or merged weight, in their order."""
    if recipe[0] == "tensor":
        yield recipe[1]
    elif recipe[0] == "transposed":
        yield ""  # adapters are for weights as [out, in]
    else:
        for part in recipe[1:]:
            if isinstance(part, tuple):
                yield from _tensor_names(part)


def _number_constants(graph: Graph) -> tuple[Recipe, ...]:
    """Number the constants of a graph, and return their recipes. Weights that were merged or packed are not kept."""
    recipes: list[Recipe] = []
    for node in graph.nodes:
        if node.op == "get_attr":
            recipes.append(node.meta.get("recipe", ("tensor", str(node.target))))
            node.target = f"constant_{len(recipes) - 1}"
    return tuple(recipes)
