"""Sequence parallelism: each rank computes a part of the positions of a diffusion transformer.

It is also called context parallelism, and this form of it Ulysses. Blocks run on the positions of a rank. For
attention, an all-to-all exchange gives each rank all positions of some heads, and another one reverses it. Text tokens
that attend together with the image are on every rank. The weights are not sharded, so that this shortens a step and
divides its activations, not the memory of the weights.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from mstar.errors import LoadError
from mstar.nn.ranks import Rank, all_to_all, gather_ragged


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a network of diffusers has its sequence."""

    blocks: str
    """Attribute with the list of blocks."""
    attention: tuple[str, ...]
    """Modules of a block that attend over the whole sequence."""
    per_position: tuple[str, ...] = ()
    """Arguments of a block, besides the hidden states, that have a value for each position."""
    hidden_output: int | None = None
    """Index of the hidden states in what a block returns, if that is a tuple."""
    is_for_all: Callable[[Tensor], bool] = lambda _: False
    """Whether such an argument has one value for all positions instead."""


_LAYOUTS = {
    "SD3Transformer2DModel": _Layout("transformer_blocks", ("attn", "attn2"), hidden_output=1),
    "WanTransformer3DModel": _Layout("blocks", ("attn1",), ("temb", "rotary_emb"), is_for_all=lambda x: x.ndim == 3),
    "LTXVideoTransformer3DModel": _Layout(
        "transformer_blocks", ("attn1",), ("temb", "image_rotary_emb"), is_for_all=lambda x: x.shape[1] == 1
    ),
}


def split_sequence(network: Any, rank: Rank) -> None:
    """Have a network compute the positions of a rank only. Raises LoadError if it cannot."""
    name = type(network).__name__
    layout = _LAYOUTS.get(name)
    if layout is None:
        problem, fix = f"{name} has no sequence that ranks can split", "remove `ranks` from its worker"
        raise LoadError(f"{problem}\n  fix: {fix}")
    heads = network.config.num_attention_heads
    if heads % rank.count:
        problem, fix = f"{name} has {heads} heads, not divisible by {rank.count} ranks", "use another number of ranks"
        raise LoadError(f"{problem}\n  fix: {fix}")
    blocks, sequence = getattr(network, layout.blocks), _Sequence(rank)
    for number, block in enumerate(blocks):
        take_part = functools.partial(sequence.take_part, inspect.signature(block.forward), layout, is_first=not number)
        block.register_forward_pre_hook(lambda _, args, kwargs, take=take_part: take(args, kwargs), with_kwargs=True)
        for attention in layout.attention:
            if (module := getattr(block, attention, None)) is not None:
                module.forward = functools.partial(_attend, sequence, module.forward)
    blocks[-1].register_forward_hook(lambda _, __, output: sequence.join(output, layout.hidden_output))


def _attend(sequence: _Sequence, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an attention module over the positions of all ranks."""
    with _ExchangeHeads(sequence):
        return forward(*args, **kwargs)


class _Sequence:
    """The sequence of the current forward."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.lengths: list[int] = []
        """Positions of each rank."""

    @property
    def own(self) -> int:
        """Positions of this rank."""
        return self.lengths[self.rank.number]

    def take_part(
        self,
        signature: inspect.Signature,
        layout: _Layout,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_first: bool,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a block, reduced to the positions of this rank."""
        given = signature.bind(*args, **kwargs).arguments
        if is_first:
            total, count = given["hidden_states"].shape[1], self.rank.count
            self.lengths = [total * (rank + 1) // count - total * rank // count for rank in range(count)]
            given["hidden_states"] = self._part(given["hidden_states"])
        for name in layout.per_position:
            value = given[name]
            if isinstance(value, tuple):
                given[name] = tuple(self._part(each) for each in value)
            elif not layout.is_for_all(value):
                given[name] = self._part(value)
        return (), given

    def _part(self, value: Tensor) -> Tensor:
        return value.split(self.lengths, 1)[self.rank.number]

    def join(self, output: Any, index: int | None) -> Any:
        """Output of the last block, with the hidden states of all ranks."""
        if index is None:
            return torch.cat(gather_ragged(output, self.lengths, 1), 1)
        joined = torch.cat(gather_ragged(output[index], self.lengths, 1), 1)
        return (*output[:index], joined, *output[index + 1 :])


class _ExchangeHeads(TorchFunctionMode):
    """Replaces attention over the positions of a rank by attention over all positions of some heads."""

    def __init__(self, sequence: _Sequence) -> None:
        super().__init__()
        self._sequence = sequence

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        parts = [self._to_heads(given.pop(name)) for name in ("query", "key", "value")]
        return self._to_positions(func(*parts, **given))

    def _to_heads(self, x: Tensor) -> Tensor:
        """[rows, heads, own positions and text, size] to [rows, own heads, all positions and text, size]."""
        sequence, rank = self._sequence, self._sequence.rank
        positions, text = x[:, :, : sequence.own], x[:, :, sequence.own :]
        heads = x.shape[1] // rank.count
        shapes = [(x.shape[0], heads, length, x.shape[3]) for length in sequence.lengths]
        received = all_to_all([*positions.chunk(rank.count, 1)], shapes)
        return torch.cat([*received, text.chunk(rank.count, 1)[rank.number]], 2)

    def _to_positions(self, x: Tensor) -> Tensor:
        """The reverse of `_to_heads`."""
        sequence, rank = self._sequence, self._sequence.rank
        total = sum(sequence.lengths)
        shape = (x.shape[0], x.shape[1], sequence.own, x.shape[3])
        received = all_to_all([*x[:, :, :total].split(sequence.lengths, 2)], [shape] * rank.count)
        positions, text = torch.cat(received, 1), x[:, :, total:]
        if not text.shape[2]:
            return positions
        return torch.cat([positions, torch.cat(gather_ragged(text, [x.shape[1]] * rank.count, 1), 1)], 2)
