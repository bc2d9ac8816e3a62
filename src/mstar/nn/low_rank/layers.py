"""Layers of lower rank in a transformers network, and how the `low_rank` of its config.json builds them.

A compressed checkpoint is an ordinary one: its config.json says which linear layers are two factors and which attention
layers have smaller heads, and its tensors have these shapes. `factors` computes the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import Linear, Module, Sequential
from torch.nn.functional import scaled_dot_product_attention

from mstar.errors import LoadError


@dataclass(frozen=True, slots=True)
class Ranks:
    """What was compressed, by the name of the module."""

    linears: dict[str, int] = field(default_factory=dict[str, int])
    """Rank of each factored linear layer."""
    heads: dict[str, int] = field(default_factory=dict[str, int])
    """Size of the heads of each reduced attention layer."""

    def to_config(self) -> dict[str, Any]:
        """The value of `low_rank` in config.json."""
        return asdict(self)


class ReducedAttention(Module):
    """Self-attention of an encoder whose heads have `size` dimensions: queries and keys of all layers are projected to
    the dimensions that their scores need, and values to those that the output needs.

    The projection of the queries includes the scale of the scores.
    """

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = Linear(width, heads * size)
        self.k_proj = Linear(width, heads * size, bias=False)
        self.v_proj = Linear(width, heads * size, bias=False)
        self.out_proj = Linear(heads * size, width)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        """In the interface of the attention layers of transformers: [batch, positions, width], and no weights."""
        query, key, value = (
            projection(hidden_states).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=1.0)
        return self.out_proj(attended.transpose(1, 2).flatten(2)), None


def factored_linear(inputs: int, outputs: int, rank: int) -> Sequential:
    """A linear layer as two factors."""
    return Sequential(Linear(inputs, rank, bias=False), Linear(rank, outputs))


def apply_ranks(network: Module, ranks: Ranks) -> None:
    """Replace modules of a network by their compressed kind, with new weights."""
    for name, size in ranks.heads.items():
        attention: Any = network.get_submodule(name)
        network.set_submodule(name, ReducedAttention(attention.embed_dim, attention.num_heads, size))
    for name, rank in ranks.linears.items():
        linear: Any = network.get_submodule(name)
        network.set_submodule(name, factored_linear(linear.in_features, linear.out_features, rank))


def low_rank_class(kind: type[Any], low_rank: Mapping[str, Any], source: str) -> type[Any]:
    """A subclass of a transformers class whose networks have these ranks, the `low_rank` of the file `source`."""

    initialize: Any = kind.__init__

    def make(self: Any, config: Any) -> None:
        initialize(self, config)
        try:
            apply_ranks(self, Ranks(**low_rank))
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            fix = "use the config.json that mstar compress wrote with these weights"
            raise LoadError(f"{source}: low_rank does not fit {kind.__name__}: {error}\n  fix: {fix}") from error

    return type(kind.__name__, (kind,), {"__init__": make, "__module__": kind.__module__})
