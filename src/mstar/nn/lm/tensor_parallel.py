"""Tensor parallelism: one network whose matrices are sharded over several processes, the ranks.

Each rank keeps a shard of every matrix in the network's plan (`tp_plan` of transformers) and a copy of the rest. An
all-reduce adds up partial results where the plan requires it, so that hidden states and logits are complete and equal
bit for bit on every rank. Equal batches then give equal pages and, with equal seeds, equal tokens.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, Parameter
from torch.nn.functional import pad

from mstar.errors import LoadError, format_names
from mstar.nn.kv.paged_attention import DIRECT_CALLS
from mstar.nn.ranks import Rank, all_reduce
from mstar.nn.weights.shards import Shard, sharded_load

_REPLICATED = "replicated_with_grad_allreduce"
"""Style of replicated modules. The rest of its name concerns training."""
_EXPERTS = "moe_tp_experts"
"""Style of experts, whose matrices have entries of their own in the plan."""
_FIX = "place it on one device, or use a model of another family"


# ---------------------------------------------------------------- all-reduce
_all_reduce_op = torch.library.custom_op("mstar::all_reduce", all_reduce, mutates_args=())


@_all_reduce_op.register_fake
def _(part: Tensor) -> Tensor:
    return part.new_empty(part.shape)


DIRECT_CALLS[torch.ops.mstar.all_reduce.default] = all_reduce


def _all_reduce(part: Tensor) -> Tensor:
    return torch.ops.mstar.all_reduce(part) if torch.compiler.is_exporting() else all_reduce(part)


# ---------------------------------------------------------------- sharding
@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Reduces networks to the shard of a rank."""

    rank: Rank

    def load(self, load: Callable[[], Any]) -> Any:
        """The shard of the network that a function loads. Of a checkpoint in safetensors only the shard is read."""
        with sharded_load(self.shard) as sharded:
            network = load()
        if not sharded.networks:
            self.shard(network)
        elif sharded.networks != [network]:  # the function makes its network of others, which must be whole
            network = load()
            self.shard(network)
        return network

    def shard(self, network: Any) -> dict[str, Shard]:
        """Reduce a network to this rank's shard, one matrix at a time; returns the shards by name of the parameter.

        Raises LoadError if the heads are not divisible by the number of ranks, or if the plan is not supported.
        """
        plan = getattr(network, "tp_plan", None)
        if not plan:
            raise LoadError(f"{type(network).__name__} has no tensor-parallel plan\n  fix: {_FIX}")
        config = network.config.get_text_config()
        queries = config.num_attention_heads
        keys = getattr(config, "num_key_value_heads", queries)
        if queries % self.rank.count or keys % self.rank.count:
            heads = f"{queries} query heads and {keys} key heads"
            fix = f"use a number of ranks that divides {math.gcd(queries, keys)}"
            raise LoadError(
                f"{type(network).__name__} has {heads}, not divisible by {self.rank.count} ranks\n  fix: {fix}"
            )
        targets = {**dict(network.named_modules()), **dict(network.named_parameters(remove_duplicate=False))}
        styles = {
            name: plan[_generic(name)] for name in targets if plan.get(_generic(name), _REPLICATED) != _REPLICATED
        }
        appliers = {name: _find_style(name, targets[name], style) for name, style in styles.items()}
        _check_cover(network, styles)
        share = _Share(self.rank)
        for name, apply in appliers.items():
            apply(share, targets[name])
        parameters = network.named_parameters(remove_duplicate=False)
        return {name: share.kept[parameter] for name, parameter in parameters if parameter in share.kept}


@dataclass(slots=True)
class _Share:
    """What a rank keeps of the parameters of one network."""

    rank: Rank
    kept: dict[Tensor, Shard] = field(default_factory=dict[Tensor, Shard])

    def bounds(self, size: int) -> tuple[int, int]:
        """This rank's part of `size` items, as [first, last)."""
        number, count = self.rank.number, self.rank.count
        return size * number // count, size * (number + 1) // count

    def keep_slice(self, parameter: Tensor, dim: int, packed: int = 1) -> None:
        """Reduce a parameter to this rank's shard; with `packed`, of each of its equal parts."""
        parts = parameter.data.unflatten(dim, (packed, -1))
        size = parts.shape[dim]
        first, last = self.bounds(size)
        own = parts.narrow(dim, first, last - first).clone(memory_format=torch.contiguous_format)
        parameter.data = own.flatten(dim - 1, dim)  # the parameter keeps its identity; the full data is freed
        self.kept[parameter] = Shard(dim, first, last, size, packed)

    def keep_zeros(self, parameter: Parameter) -> None:
        """Replace a parameter that only rank 0 has by zeros."""
        parameter.data = torch.zeros_like(parameter)
        size = parameter.shape[-1]
        self.kept[parameter] = Shard(-1, 0, size, size, is_zero=True)


def _generic(name: str) -> str:
    """A name in the notation of plans, with `*` for layer numbers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _find_style(name: str, target: Module | Parameter, style: str) -> Callable[[_Share, Any], None]:
    """The function that applies a style."""
    for (known, kind), apply in _STYLES.items():
        if known == style and isinstance(target, kind):
            return apply
    problem = f"the tensor-parallel plan has the style {style!r} for {name}, a {type(target).__name__}: not supported"
    raise LoadError(f"{problem}\n  fix: {_FIX}")


def _check_cover(network: Any, styles: dict[str, str]) -> None:
    """Raise LoadError for a parameter that only some of its users shard, or for experts with a replicated parameter,
    which the all-reduce would add up."""
    uses: defaultdict[Parameter, list[str]] = defaultdict(list)
    for name, parameter in network.named_parameters(remove_duplicate=False):
        uses[parameter].append(name)
    for names in uses.values():
        owners = {name: name.rpartition(".")[0] for name in names}
        whole = [name for name in names if name not in styles and styles.get(owners[name], _EXPERTS) == _EXPERTS]
        if len(whole) not in (0, len(names)) or any(owners[name] in styles for name in whole):
            problem = f"the tensor-parallel plan shards a module but not its parameters {format_names(whole)}"
            raise LoadError(f"{problem}\n  fix: {_FIX}")


# ---------------------------------------------------------------- styles
def _all_reduce_output(_module: Module, _given: Any, part: Any) -> Tensor:
    """Forward hook: add up the outputs of all ranks."""
    return _all_reduce(part)


def _colwise(share: _Share, linear: Linear) -> None:
    """Column parallel: a shard of the outputs, which the next layer consumes."""
    for parameter, dim in ((linear.weight, -2), (linear.bias, -1)):
        if parameter is not None:
            share.keep_slice(parameter, dim)


def _rowwise(share: _Share, linear: Linear) -> None:
    """Row parallel: a shard of the inputs; the results are added up, and only rank 0 has the bias."""
    share.keep_slice(linear.weight, -1)
    if linear.bias is not None and share.rank.number:
        share.keep_zeros(linear.bias)
    linear.register_forward_hook(_all_reduce_output)


def _gathered(share: _Share, linear: Linear) -> None:
    """Column parallel with gathered outputs, such as logits: each rank pads its shard with zeros, then all add up."""
    size = linear.out_features
    first, last = share.bounds(size)
    if len(linear.weight) == size:  # else it is tied to the embedding, which is already sharded
        share.keep_slice(linear.weight, -2)
    if linear.bias is not None:
        share.keep_slice(linear.bias, -1)
    linear.register_forward_hook(lambda _module, _given, part: _all_reduce(pad(part, (first, size - last))))


def _embedding(share: _Share, embedding: Embedding) -> None:
    """Vocabulary parallel: a shard of the rows; the embedding of a token in another shard is zero before the sum."""
    size = embedding.num_embeddings
    first, last = share.bounds(size)
    share.keep_slice(embedding.weight, -2)
    look_up = embedding.forward

    def forward(input: Tensor) -> Tensor:
        if ((input < 0) | (input >= size)).any():  # on all ranks: none must wait for one that has raised
            raise IndexError(f"a token is out of range 0 to {size - 1}\n  fix: use the tokenizer of this model")
        is_remote = (input < first) | (input >= last)
        embedded = look_up((input - first).masked_fill(is_remote, 0))
        return _all_reduce(embedded.masked_fill(is_remote[..., None], 0))

    embedding.forward = forward


_STYLES: dict[tuple[str, type[Module | Parameter]], Callable[[_Share, Any], None]] = {
    ("colwise", Linear): _colwise,
    ("rowwise", Linear): _rowwise,
    ("colwise_gather_output", Linear): _gathered,
    ("embedding_rowwise", Embedding): _embedding,
    ("packed_colwise", Parameter): lambda share, parameter: share.keep_slice(parameter, -2, packed=2),
    ("rowwise", Parameter): lambda share, parameter: share.keep_slice(parameter, -1),
    (_EXPERTS, Module): lambda _share, experts: experts.register_forward_hook(_all_reduce_output),
}
"""Function that applies a style, by the style and the type of its target."""
