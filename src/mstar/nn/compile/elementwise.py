"""Elementwise operations whose results do not depend on the place of an element in its tensor.

torch computes whole vectors, and what is left at the end of a tensor or of the part of a thread, by other functions.
Their last bits differ, so that the activations of a request would depend on its place in a batch. Here nothing is left:
a tensor is padded if its size is not a multiple of the vectors. Sizes of published networks mostly are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

aten = torch.ops.aten

_OPERATIONS: dict[str, Any] = {
    str(operation): operation
    for operation in (
        *(aten.silu.default, aten.gelu.default, aten.sigmoid.default, aten.tanh.default, aten.erf.default),
        *(aten.exp.default, aten.log.default, aten.softplus.default, aten.cos.default, aten.sin.default),
    )
}
_NAMES = {operation: name for name, operation in _OPERATIONS.items()}
_VECTOR_BYTES = 128
"""Bytes that torch computes together: two vectors of AVX-512."""
_GRAIN = 32_768
"""Elements below which torch starts no other thread."""


def fix_elementwise(graph: Graph) -> None:
    """Replace the elementwise operations of a graph by `in_whole_vectors`."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _NAMES:
            node.args = (node.args[0], _NAMES[node.target], *node.args[1:])
            node.target = in_whole_vectors


def in_whole_vectors(x: Tensor, name: str, *arguments: Any, **options: Any) -> Tensor:
    """The result of an elementwise operation."""
    operation, count = _OPERATIONS[name], x.numel()
    size = _padded_size(count, _VECTOR_BYTES // x.element_size())
    if size == count and x.is_contiguous():
        return operation(x, *arguments, **options)
    padded = x.new_zeros(size)
    padded[:count].view(x.shape).copy_(x)
    return operation(padded, *arguments, **options)[:count].view(x.shape)


def _padded_size(count: int, vector: int) -> int:
    """The next number of elements of which each thread of torch gets whole vectors."""
    while True:
        threads = 1 if count <= _GRAIN else min(torch.get_num_threads(), -(-count // _GRAIN))
        size = -(-count // (vector * threads)) * vector * threads
        if size == count:
            return size
        count = size
