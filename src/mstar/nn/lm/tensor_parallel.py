"""Tensor parallelism: one network whose matrices are shared by several processes, the ranks.

Each rank keeps a slice of every matrix that the network's own plan names (transformers' `tp_plan`) and the rest whole.
Where the plan says so it adds up what the ranks computed, so that hidden states and logits are whole on every rank, and
the same bits. Every rank must run the same ops on the same batches in the same order; a group of workers sees to that,
not this module. From the same batches follow the same pages and, with the same seeds, the same tokens.

A process is in one group. Its ranks trust each other and their network: nothing between them is encrypted.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import Embedding, Linear, Module, Parameter
from torch.nn.functional import pad

from mstar.errors import LoadError, format_names
from mstar.nn.kv.paged_attention import DIRECT_CALLS

_REPLICATED = "replicated_with_grad_allreduce"
"""The style of what every rank has whole; what it asks for besides concerns training."""
_EXPERTS = "moe_tp_experts"
"""The style of experts whose matrices are sliced by entries of their own."""
_FIX = "place it on one device, or use a model of another family"


# ---------------------------------------------------------------- adding up
def all_reduce_eager(part: Tensor) -> Tensor:
    """The sum of all ranks' parts, on every rank."""
    whole = part.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(whole)
    return whole


_all_reduce_op = torch.library.custom_op("mstar::all_reduce", all_reduce_eager, mutates_args=())


@_all_reduce_op.register_fake
def _(part: Tensor) -> Tensor:
    return part.new_empty(part.shape)


DIRECT_CALLS[torch.ops.mstar.all_reduce.default] = all_reduce_eager


def _all_reduce(part: Tensor) -> Tensor:
    return torch.ops.mstar.all_reduce(part) if torch.compiler.is_exporting() else all_reduce_eager(part)


@contextmanager
def join_group(address: str, rank: int, ranks: int, *, timeout_s: float = 300) -> Iterator[TensorParallel]:
    """Inside it, this process is a rank of the group that meets at `address`, tcp://host:port or file:///path.

    A rank that waits for another longer than `timeout_s`, the time it takes to load included, raises.
    """
    timeout = timedelta(seconds=timeout_s)
    distributed.init_process_group(init_method=address, rank=rank, world_size=ranks, timeout=timeout)
    try:
        yield TensorParallel(rank, ranks)
    finally:
        distributed.destroy_process_group()


# ---------------------------------------------------------------- slicing
@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Which rank this is, and of how many."""

    rank: int
    ranks: int

    def shard(self, network: Any) -> None:
        """Keep only this rank's part of a network, one matrix after the other.

        Raises LoadError for a network that so many ranks cannot share, or whose plan is not understood.
        """
        plan, config = network.tp_plan, network.config.get_text_config()
        if not plan:
            raise LoadError(f"{type(network).__name__} has no plan for {self.ranks} ranks\n  fix: {_FIX}")
        queries = config.num_attention_heads
        keys = getattr(config, "num_key_value_heads", queries)
        if queries % self.ranks or keys % self.ranks:
            said = f"{type(network).__name__} has {queries} heads, {keys} of them for keys, which {self.ranks} ranks"
            fix = f"use a number of ranks that divides {math.gcd(queries, keys)}"
            raise LoadError(f"{said} cannot share\n  fix: {fix}")
        things = {**dict(network.named_modules()), **dict(network.named_parameters(remove_duplicate=False))}
        styles = {name: plan[_generic(name)] for name in things if plan.get(_generic(name), _REPLICATED) != _REPLICATED}
        ways = {name: _find_style(name, things[name], style) for name, style in styles.items()}
        _check_cover(network, styles)
        for name, way in ways.items():
            way(self, things[name])

    def bounds(self, size: int) -> tuple[int, int]:
        """Which of so many things are this rank's: the first, and the one after the last."""
        return size * self.rank // self.ranks, size * (self.rank + 1) // self.ranks

    def keep_slice(self, parameter: Tensor, dim: int, packed: int = 1) -> None:
        """Keep this rank's slice of a parameter, or of each of the equal parts it is packed of."""
        parts = parameter.data.unflatten(dim, (packed, -1))
        first, last = self.bounds(parts.shape[dim])
        own = parts.narrow(dim, first, last - first).clone(memory_format=torch.contiguous_format)
        parameter.data = own.flatten(dim - 1, dim)  # it is the same parameter still, and the whole one is let go


def _generic(name: str) -> str:
    """A name as plans write it, with stars for numbers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _find_style(name: str, thing: Module | Parameter, style: str) -> Callable[[TensorParallel, Any], None]:
    """How a style is done."""
    for (known, kind), way in _STYLES.items():
        if known == style and isinstance(thing, kind):
            return way
    said = f"the plan for ranks says {style!r} of {name}, a {type(thing).__name__}, which is not done here"
    raise LoadError(f"{said}\n  fix: {_FIX}")


def _check_cover(network: Any, styles: dict[str, str]) -> None:
    """A parameter is sliced for all that use it, or none. Experts have none that is whole: it would be added up."""
    uses: defaultdict[Parameter, list[str]] = defaultdict(list)
    for name, parameter in network.named_parameters(remove_duplicate=False):
        uses[parameter].append(name)
    for names in uses.values():
        owners = {name: name.rpartition(".")[0] for name in names}
        whole = [name for name in names if name not in styles and styles.get(owners[name], _EXPERTS) == _EXPERTS]
        if len(whole) not in (0, len(names)) or any(owners[name] in styles for name in whole):
            said = f"the plan for ranks leaves out {format_names(whole)}, though it slices what belongs to it"
            raise LoadError(f"{said}\n  fix: {_FIX}")


# ---------------------------------------------------------------- styles
def _all_reduce_output(_module: Module, _given: Any, part: Any) -> Tensor:
    """What a module gives, of all ranks."""
    return _all_reduce(part)


def _colwise(share: TensorParallel, linear: Linear) -> None:
    """A slice of the outputs; the next layer takes it as it is."""
    for parameter, dim in ((linear.weight, -2), (linear.bias, -1)):
        if parameter is not None:
            share.keep_slice(parameter, dim)


def _rowwise(share: TensorParallel, linear: Linear) -> None:
    """A slice of the inputs; the ranks' results are added up, and one of them has the bias."""
    share.keep_slice(linear.weight, -1)
    if linear.bias is not None and share.rank:
        linear.bias.data = torch.zeros_like(linear.bias)
    linear.register_forward_hook(_all_reduce_output)


def _gathered(share: TensorParallel, linear: Linear) -> None:
    """A slice of the outputs, such as logits, that every rank then has whole: what others have is added to zeros."""
    size = linear.out_features
    first, last = share.bounds(size)
    if len(linear.weight) == size:  # it is not also the embedding, sliced already
        share.keep_slice(linear.weight, -2)
    if linear.bias is not None:
        share.keep_slice(linear.bias, -1)
    linear.register_forward_hook(lambda _module, _given, part: _all_reduce(pad(part, (first, size - last))))


def _embedding(share: TensorParallel, embedding: Embedding) -> None:
    """A slice of the vocabulary; of tokens outside of it this rank says zero."""
    size = embedding.num_embeddings
    first, last = share.bounds(size)
    share.keep_slice(embedding.weight, -2)
    look_up = embedding.forward

    def forward(input: Tensor) -> Tensor:
        if ((input < 0) | (input >= size)).any():  # on all ranks, so that none waits for one that has raised
            raise IndexError(f"a token is not one of 0 to {size - 1}\n  fix: use the tokenizer of this model")
        is_elsewhere = (input < first) | (input >= last)
        found = look_up((input - first).masked_fill(is_elsewhere, 0))
        return _all_reduce(found.masked_fill(is_elsewhere[..., None], 0))

    embedding.forward = forward


_STYLES: dict[tuple[str, type[Module | Parameter]], Callable[[TensorParallel, Any], None]] = {
    ("colwise", Linear): _colwise,
    ("rowwise", Linear): _rowwise,
    ("colwise_gather_output", Linear): _gathered,
    ("embedding_rowwise", Embedding): _embedding,
    ("packed_colwise", Parameter): lambda share, parameter: share.keep_slice(parameter, -2, packed=2),
    ("rowwise", Parameter): lambda share, parameter: share.keep_slice(parameter, -1),
    (_EXPERTS, Module): lambda _share, experts: experts.register_forward_hook(_all_reduce_output),
}
"""What is done for a style, by what it is said of."""
