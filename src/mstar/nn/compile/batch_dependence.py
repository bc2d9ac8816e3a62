"""Whether a result of a captured graph can depend on the rest of its batch, from the operations that it has."""

from __future__ import annotations

import torch
from torch.fx import Graph

from mstar.nn.compile.fusion import value_of
from mstar.nn.kv.paged_attention import attend_general

aten = torch.ops.aten
_ONEDNN = torch.ops.mkldnn._linear_pointwise.default
_LIBRARY_PRODUCTS = {
    *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"),
    *("conv1d", "conv2d", "convolution", "scaled_dot_product_attention", "cumsum"),
}
"""Operations of torch whose sums are those of a library, which chooses their order by the number of rows."""


def batch_dependence(graph: Graph) -> str:
    """Why a result can depend on the rest of the batch; empty if it cannot."""
    targets = {node.target for node in graph.nodes if node.op == "call_function"}
    if attend_general in targets:
        return "torch computes its attention, which has a soft cap or sinks"
    if _ONEDNN in targets:
        return "oneDNN computes its matrix products, in bfloat16 on a CPU with instructions for it"
    names = {target._schema.name.partition("::")[2] for target in targets if isinstance(target, torch._ops.OpOverload)}
    if products := sorted(name for name in names if name in _LIBRARY_PRODUCTS or "grouped_mm" in name):
        return f"torch computes its operation {products[0]}, as that of experts"
    return ""


def multiply_outer_products(graph: Graph) -> None:
    """Replace matrix products without a sum, such as the angles of a rotary embedding, by elementwise ones."""
    for node in graph.nodes:
        if node.target is aten.matmul.default and all(value_of(part).ndim > 1 for part in node.args):
            first, second = map(value_of, node.args)
            if first.shape[-1] == 1 == second.shape[-2]:
                node.target = aten.mul.Tensor
