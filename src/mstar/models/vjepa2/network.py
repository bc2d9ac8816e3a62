"""The networks of V-JEPA 2-AC, with the published names: an encoder of frames, and a predictor that remembers.

transformers has the encoder under other names, exact, and thrice as slow on one small frame; it shares its blocks with
the predictor, which no library has. A frame sees itself and all frames before, so no mask is needed, and what was read
is never read again. Needs torch, and is imported where an op runs. Which requests share a step is not decided here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

from mstar.models.vjepa2.checkpoint import Shape, Sizes
from mstar.models.vjepa2.world import RowBlock, split_rows
from mstar.nn import native
from mstar.nn.native import networks

_HIDDEN_BYTES = 1 << 20
"""So much of a layer's widest product is computed at once: it stays in a core's own cache."""
_MAX_FUSED_HIDDEN = 512
"""Longer rows do not stay in a core's first cache, and torch's products are faster than the kernels'."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""What queries see of keys and values, [rows, heads, tokens, size] each."""


class RotaryTables(NamedTuple):
    """How much of each channel of queries and keys is kept, and of its neighbours added, [tokens, channels]."""

    own: Tensor
    right: Tensor
    left: Tensor
    """Nothing of what is to the left of the first channel."""


def rotary_tables(places: Sequence[tuple[int, int, int]], shape: Shape, like: Tensor) -> RotaryTables:
    """Of tokens at (frame, row, column): a third of a head's channels for each.

    As it was published, angles are laid out for two halves, and channels are turned in neighbouring pairs.
    """
    size = shape.width // shape.heads
    part = 2 * (size // 3 // 2)
    steps = 10_000.0 ** (-torch.arange(part // 2, dtype=torch.float64) / (part / 2))
    angles = torch.tensor(places, dtype=torch.float64)[:, :, None] * steps.repeat(2)
    angles = nn.functional.pad(angles.flatten(1), (0, size - 3 * part)).repeat(1, 2 * shape.heads)
    odd = torch.arange(angles.shape[1]) % 2
    return RotaryTables(*(one.to(like) for one in (angles.cos(), -angles.sin() * (1 - odd), angles.sin() * odd)))


class Block(nn.Module):
    """A layer of either network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self.norm1, self.norm2 = nn.LayerNorm(width, shape.eps), nn.LayerNorm(width, shape.eps)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, shape.hidden), "fc2": nn.Linear(shape.hidden, width)})

    @functools.cached_property
    def _weights(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases. A layer of few tokens is over before modules are asked for them one by one."""
        products = (self.attn["qkv"], self.attn["proj"], self.mlp["fc1"], self.mlp["fc2"])
        return [(one.weight, one.bias) for one in (self.norm1, self.norm2, *products)]  # pyright: ignore[reportReturnType]

    def forward(self, x: Tensor, by: RotaryTables, attend: Attend, first: int = 0) -> Tensor:
        """[rows, tokens, width] to the same, of the tokens from the first that somebody reads."""
        norm1, norm2, qkv, proj, fc1, fc2 = self._weights
        (rows, tokens, width), heads, eps = x.shape, self.shape.heads, self.shape.eps
        read = linear(layer_norm(x, (width,), *norm1, eps).view(-1, width), *qkv).view(rows, tokens, 3 * width)
        query, key = self._rotate(read, by).view(rows, tokens, 2, heads, -1).permute(2, 0, 3, 1, 4).unbind()
        value = read.narrow(2, 2 * width, width).unflatten(2, (heads, -1)).transpose(1, 2)
        if first:
            query, x = query[:, :, first:], x[:, first:]
        seen = attend(query, key, value).transpose(1, 2).reshape(-1, width)
        x = linear(seen, *proj).view(x.shape).add_(x)
        hidden = linear(layer_norm(x, (width,), *norm2, eps).view(-1, width), *fc1)
        return linear(torch.ops.aten.gelu_(hidden), *fc2).view(x.shape).add_(x)

    def packed_weights(self) -> Iterator[Tensor]:
        """Weights and biases for the kernels: norms as they are, matrices in tiles."""
        for norm, parts in ((self.norm1, self.attn), (self.norm2, self.mlp)):
            yield from (norm.weight, norm.bias)
            for part in parts.values():
                yield from (native.to_tiles(part.weight), part.bias)  # pyright: ignore[reportArgumentType, reportReturnType]

    def _rotate(self, read: Tensor, by: RotaryTables) -> Tensor:
        """Queries and keys of [rows, tokens, 3 * width], turned. A neighbour is the same memory, one further."""
        count = 2 * self.shape.width
        result = read.narrow(2, 0, count) * by.own
        result.addcmul_(read.narrow(2, 1, count), by.right)
        result.narrow(2, 1, count - 1).addcmul_(read.narrow(2, 0, count - 1), by.left[..., 1:])
        return result


class FusedLayers:
    """All layers of a network in one call. Only where there are kernels for it."""

    def __init__(self, blocks: Sequence[Block], shape: Shape) -> None:
        self._shape = shape
        self._tensors = [
            part for block in blocks for part in block.packed_weights()
        ]  # which the addresses below are of
        places, count = iter([one.data_ptr() for one in self._tensors]), len(networks.Block._fields_)
        self._blocks = (networks.Block * len(blocks))(*(networks.Block(*islice(places, count)) for _ in blocks))

    def __call__(self, x: Tensor, by: RotaryTables, part: RowBlock | None = None) -> None:
        """[rows, tokens, width], in its place, which see themselves, or with a part all that it remembers."""
        shape, kept = self._shape, None
        if part is not None:
            shared = (
                networks.KVCacheView()
                if part.shared is None
                else networks.KVCacheView.from_tensor(part.shared.cells, part.shared.length)
            )
            kept = (
                shared,
                networks.KVCacheView.from_tensor(part.own.cells.narrow(2, part.first, part.count), part.own.length),
            )
        stage = networks.BlockSizes(*x.shape, shape.hidden, shape.heads, shape.eps)
        networks.run_blocks(x, self._blocks, networks.Rotations(*(one.data_ptr() for one in by)), kept, stage)


def fuse_layers(blocks: nn.ModuleList, shape: Shape) -> FusedLayers | None:
    """These layers in one call, if there are kernels for them and they are faster than torch."""
    weight = next(blocks.parameters())
    is_faster = shape.hidden <= _MAX_FUSED_HIDDEN or (
        weight.dtype is torch.bfloat16 and not native.supports_bf16_matmul()
    )
    is_native = is_faster and native.is_native(weight.dtype, weight.device)
    return FusedLayers([*blocks], shape) if is_native else None  # pyright: ignore[reportArgumentType]


class Encoder(nn.Module):
    """Frames or clips to embeddings of their patches."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        kernel = (sizes.tubelet, sizes.patch, sizes.patch)
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv3d(3, sizes.encoder.width, kernel, kernel)})
        self.blocks = nn.ModuleList(Block(sizes.encoder) for _ in range(sizes.encoder.depth))
        self.norm = nn.LayerNorm(sizes.encoder.width, sizes.encoder.eps)

    def forward(self, clips: Tensor) -> Tensor:
        """[clips, 3, frames, height, width] to [clips, patches, width]."""
        x = self.patch_embed["proj"](clips.to(self.norm.weight.dtype))
        by = self._rotary_tables(*x.shape[2:])
        x = x.flatten(2).transpose(1, 2).contiguous()
        if self._fused is not None:
            self._fused(x, by)
            return self.norm(x)
        for block in self.blocks:
            x = block(x, by, scaled_dot_product_attention)
        return self.norm(x)

    @functools.cached_property
    def _fused(self) -> FusedLayers | None:
        return fuse_layers(self.blocks, self.sizes.encoder)

    @functools.lru_cache(maxsize=4)  # noqa: B019 - a network lives as long as its process
    def _rotary_tables(self, *grid: int) -> RotaryTables:
        places: list[tuple[int, int, int]] = list(product(*map(range, grid)))  # pyright: ignore[reportAssignmentType]
        return rotary_tables(places, self.sizes.encoder, self.norm.weight)

    def encode_frames(self, pixels: Tensor) -> Tensor:
        """[frames, 3, height, width], each by itself, as the predictor knows frames: [frames, patches, width]."""
        seen = self(pixels[:, :, None].expand(-1, -1, self.sizes.tubelet, -1, -1))
        return layer_norm(seen.float(), seen.shape[-1:])


class Predictor(nn.Module):
    """What is seen next, of what is seen now, an action and a pose."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        shape, width = sizes.predictor, sizes.predictor.width
        self.sizes, self.shape, self.tokens = sizes, shape, 2 + sizes.grid**2
        self.predictor_embed = nn.Linear(sizes.encoder.width, width)
        self.action_encoder, self.state_encoder = nn.Linear(7, width), nn.Linear(7, width)
        self.predictor_blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.predictor_norm = nn.LayerNorm(width, shape.eps)
        self.predictor_proj = nn.Linear(width, sizes.encoder.width)

    @functools.cached_property
    def _fused(self) -> FusedLayers | None:
        return fuse_layers(self.predictor_blocks, self.shape)

    @property
    def max_rows(self) -> int:
        """How many rows go through the layers together."""
        return max(1, _HIDDEN_BYTES // (self.tokens * self.shape.hidden * self.predictor_norm.weight.element_size()))

    def empty_cache(self) -> Tensor:
        """Cells of a memory, of one row and no token."""
        shape = self.shape
        return self.predictor_norm.weight.new_empty((shape.depth, 2, 1, shape.heads, 0, shape.width // shape.heads))

    def forward(self, seen: Tensor, actions: Tensor, poses: Tensor, parts: Sequence[RowBlock]) -> Tensor:
        """[rows, patches, D], [rows, 7] and [rows, 7], the parts one after the other, to what follows each frame."""
        like = self.predictor_norm.weight
        told = [self.action_encoder(actions.to(like)), self.state_encoder(poses.to(like))]
        x = torch.cat([torch.stack(told, 1), self.predictor_embed(seen.to(like))], 1)
        by = [self._rotary_tables(part.start // self.tokens) for part in parts]
        if self._fused is not None:
            for own, turned, part in zip(x.split([part.count for part in parts]), by, parts, strict=True):
                self._fused(own, turned, part)
            return self.predictor_proj(self.predictor_norm(x[:, 2:]))
        if any(one is not by[0] for one in by):
            spread = [[table.expand(part.count, -1, -1) for table in one] for one, part in zip(by, parts, strict=True)]
            by = [RotaryTables(*map(torch.cat, zip(*spread, strict=True)))]
        for layer, block in enumerate(self.predictor_blocks):
            first = 2 if layer == self.shape.depth - 1 else 0  # behind the last layer, only patches are read
            x = block(x, by[0], functools.partial(_attend, layer, parts), first)
        return self.predictor_proj(self.predictor_norm(x))

    def predict(self, seen: Tensor, actions: Tensor, poses: Tensor, parts: Sequence[RowBlock]) -> Tensor:
        """The same as frames are seen, with as many rows at once as fit."""
        first, results = 0, list[Tensor]()
        for some in split_rows(parts, self.max_rows):
            rows = slice(first, first := first + sum(part.count for part in some))
            results.append(self(seen[rows], actions[rows], poses[rows], some))
        return layer_norm(concat(results).float(), seen.shape[-1:])

    @functools.lru_cache(maxsize=16)  # noqa: B019 - a network lives as long as its process
    def _rotary_tables(self, frame: int) -> RotaryTables:
        """Of an action, a pose and the patches; the first two have no row and no column."""
        side = range(self.sizes.grid)
        places = [(frame, 0, 0)] * 2 + [(frame, row, column) for row in side for column in side]
        return rotary_tables(places, self.shape, self.predictor_norm.weight)


def _attend(layer: int, parts: Sequence[RowBlock], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each part writes its keys and values, and then sees all that it remembers."""
    if len(parts) == 1:
        return _attend_part(layer, parts[0], query, key, value)
    counts = [part.count for part in parts]
    given = zip(parts, *(one.split(counts) for one in (query, key, value)), strict=True)
    return torch.cat([_attend_part(layer, part, *one) for part, *one in given])


def _attend_part(layer: int, part: RowBlock, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    keys, values, *now = part.cells[layer]
    now[0].copy_(key)
    now[1].copy_(value)
    if part.shared is None:
        return scaled_dot_product_attention(query, keys, values)
    # What all rows share is not copied to each of them: to it, the queries of all rows are those of one.
    shared_keys, shared_values = part.shared.valid_cells[layer, :, 0]
    rows, _, tokens, size = query.shape
    query = query * size**-0.5
    one_row = query.transpose(0, 1).flatten(1, 2)
    far = (one_row @ shared_keys.mT).unflatten(1, (rows, tokens)).transpose(0, 1)
    weights = torch.cat([far, query @ keys.mT], -1).softmax(-1)
    far, near = weights.split([part.shared.length, part.own.length], -1)
    one_row = far.transpose(0, 1).flatten(1, 2) @ shared_values
    return one_row.unflatten(1, (rows, tokens)).transpose(0, 1) + near @ values


def to_tensor(values: Any) -> Tensor:
    """What a client sent as a copy, or what an op gave as it is."""
    return values if isinstance(values, Tensor) else torch.tensor(values)


def concat(parts: Sequence[Tensor]) -> Tensor:
    """One after the other; one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def apply_actions(poses: Tensor, actions: Tensor) -> Tensor:
    """Where a hand is after an action, [rows, 7]: its place, its three angles, and how far it is closed."""
    turn = _rotation_matrix(actions[:, 3:6].double()) @ _rotation_matrix(poses[:, 3:6].double())
    angles = [
        torch.atan2(turn[:, 2, 1], turn[:, 2, 2]),
        torch.asin(-turn[:, 2, 0].clamp(-1, 1)),
        torch.atan2(turn[:, 1, 0], turn[:, 0, 0]),
    ]
    closed = (poses[:, 6:] + actions[:, 6:]).clamp(0, 1)
    return torch.cat([poses[:, :3] + actions[:, :3], torch.stack(angles, 1).float(), closed], 1)


def _rotation_matrix(angles: Tensor) -> Tensor:
    """Turns about x, then y, then z, which stay where they are: [rows, 3] to [rows, 3, 3]."""
    (a, b, c), (x, y, z) = angles.cos().unbind(1), angles.sin().unbind(1)
    rows = [b * c, x * y * c - a * z, a * y * c + x * z, b * z, x * y * z + a * c, a * y * z - x * c, -y, x * b, a * b]
    return torch.stack(rows, 1).unflatten(1, (3, 3))
