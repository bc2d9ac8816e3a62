"""V-JEPA 2-AC networks with the published tensor names: a frame encoder, and a causal predictor with a KV cache.

The encoder of transformers is equal but three times slower on one small frame; it shares its blocks with the predictor,
which no library has. A frame attends to itself and to all earlier frames, so no mask is needed, and no frame is
recomputed. Imports torch, so it is imported inside ops only. Batching is decided in `predictor`.
"""

from __future__ import annotations

import functools
import sys
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
from mstar.walk.values import to_device

_HIDDEN_BYTES = 1 << 20
"""Maximum bytes of the widest activation per row block, so that it stays in the L2 cache of a core."""
_MAX_FUSED_HIDDEN = 512
"""Maximum MLP width for the fused kernels. Wider rows leave the L1 cache, and torch is faster."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of [rows, heads, tokens, size] each."""


class RotaryTables(NamedTuple):
    """Factors of each channel of queries and keys, and of its right and left neighbor, [tokens, channels]."""

    own: Tensor
    right: Tensor
    left: Tensor
    """Zero at the first channel, which has no left neighbor."""


def rotary_tables(positions: Sequence[tuple[int, int, int]], shape: Shape, like: Tensor) -> RotaryTables:
    """Build the tables for tokens at (frame, row, column), with a third of the head channels for each.

    As published, angles are laid out for two halves, but channels are rotated in neighboring pairs.
    """
    size = shape.width // shape.heads
    part = 2 * (size // 3 // 2)
    steps = 10_000.0 ** (-torch.arange(part // 2, dtype=torch.float64) / (part / 2))
    angles = torch.tensor(positions, dtype=torch.float64)[:, :, None] * steps.repeat(2)
    angles = nn.functional.pad(angles.flatten(1), (0, size - 3 * part)).repeat(1, 2 * shape.heads)
    odd = torch.arange(angles.shape[1]) % 2
    factors = (angles.cos(), -angles.sin() * (1 - odd), angles.sin() * odd)
    return RotaryTables(*(table.to(like) for table in factors))


class Block(nn.Module):
    """Transformer layer of either network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self.norm1, self.norm2 = nn.LayerNorm(width, shape.eps), nn.LayerNorm(width, shape.eps)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, shape.hidden), "fc2": nn.Linear(shape.hidden, width)})

    @functools.cached_property
    def _weights(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases. Looking them up in modules would take longer than a layer with few tokens."""
        products = (self.attn["qkv"], self.attn["proj"], self.mlp["fc1"], self.mlp["fc2"])
        return [(layer.weight, layer.bias) for layer in (self.norm1, self.norm2, *products)]  # pyright: ignore[reportReturnType]

    def forward(self, x: Tensor, tables: RotaryTables, attend: Attend, first: int = 0) -> Tensor:
        """Map [rows, tokens, width] to the same. Only tokens from `first` on are returned."""
        norm1, norm2, qkv, proj, fc1, fc2 = self._weights
        (rows, tokens, width), heads, eps = x.shape, self.shape.heads, self.shape.eps
        projected = linear(layer_norm(x, (width,), *norm1, eps).view(-1, width), *qkv).view(rows, tokens, 3 * width)
        query, key = self._rotate(projected, tables).view(rows, tokens, 2, heads, -1).permute(2, 0, 3, 1, 4).unbind()
        value = projected.narrow(2, 2 * width, width).unflatten(2, (heads, -1)).transpose(1, 2)
        if first:
            query, x = query[:, :, first:], x[:, first:]
        attended = attend(query, key, value).transpose(1, 2).reshape(-1, width)
        x = linear(attended, *proj).view(x.shape).add_(x)
        hidden = linear(layer_norm(x, (width,), *norm2, eps).view(-1, width), *fc1)
        return linear(torch.ops.aten.gelu_(hidden), *fc2).view(x.shape).add_(x)

    def packed_weights(self) -> Iterator[Tensor]:
        """Yield weights and biases for the kernels, with matrices as tiles."""
        for norm, parts in ((self.norm1, self.attn), (self.norm2, self.mlp)):
            yield from (norm.weight, norm.bias)
            for part in parts.values():
                yield from (native.to_tiles(part.weight), part.bias)  # pyright: ignore[reportArgumentType, reportReturnType]

    def _rotate(self, projected: Tensor, tables: RotaryTables) -> Tensor:
        """Rotate queries and keys of [rows, tokens, 3 * width].

        A neighbor channel is the same memory, shifted by one.
        """
        count = 2 * self.shape.width
        result = projected.narrow(2, 0, count) * tables.own
        result.addcmul_(projected.narrow(2, 1, count), tables.right)
        result.narrow(2, 1, count - 1).addcmul_(projected.narrow(2, 0, count - 1), tables.left[..., 1:])
        return result


class FusedLayers:
    """All layers of a network in one native call."""

    def __init__(self, blocks: Sequence[Block], shape: Shape) -> None:
        self._shape = shape
        self._tensors = [part for block in blocks for part in block.packed_weights()]  # keeps the addresses below alive
        addresses, count = iter([tensor.data_ptr() for tensor in self._tensors]), len(networks.Block._fields_)
        self._blocks = (networks.Block * len(blocks))(*(networks.Block(*islice(addresses, count)) for _ in blocks))

    def __call__(self, x: Tensor, tables: RotaryTables, part: RowBlock | None = None) -> None:
        """Run [rows, tokens, width] in place. Tokens attend to themselves or, with a row block, to its KV cache."""
        shape, caches = self._shape, None
        if part is not None:
            view = networks.KVCacheView.from_tensor
            shared, own = part.shared, part.own
            shared_view = networks.KVCacheView() if shared is None else view(shared.cells, shared.length)
            caches = (shared_view, view(own.cells.narrow(2, part.first, part.count), own.length))
        sizes = networks.BlockSizes(*x.shape, shape.hidden, shape.heads, shape.eps)
        networks.run_blocks(x, self._blocks, networks.Rotations(*(table.data_ptr() for table in tables)), caches, sizes)


def fuse_layers(blocks: nn.ModuleList, shape: Shape) -> FusedLayers | None:
    """Fuse the layers, if native kernels exist and are faster than torch."""
    weight = next(blocks.parameters())
    is_faster = shape.hidden <= _MAX_FUSED_HIDDEN or (
        weight.dtype is torch.bfloat16 and not native.supports_bf16_matmul()
    )
    is_native = is_faster and native.is_native(weight.dtype, weight.device)
    return FusedLayers([*blocks], shape) if is_native else None  # pyright: ignore[reportArgumentType]


class Encoder(nn.Module):
    """Encodes frames or clips to one embedding per patch."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        kernel = (sizes.tubelet, sizes.patch, sizes.patch)
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv3d(3, sizes.encoder.width, kernel, kernel)})
        self.blocks = nn.ModuleList(Block(sizes.encoder) for _ in range(sizes.encoder.depth))
        self.norm = nn.LayerNorm(sizes.encoder.width, sizes.encoder.eps)

    def forward(self, clips: Tensor) -> Tensor:
        """Map [clips, 3, frames, height, width] to [clips, patches, width]."""
        x = self.patch_embed["proj"](clips.to(self.norm.weight.dtype))
        tables = self._rotary_tables(*x.shape[2:])
        x = x.flatten(2).transpose(1, 2).contiguous()
        if self._fused is not None:
            self._fused(x, tables)
            return self.norm(x)
        for block in self.blocks:
            x = block(x, tables, scaled_dot_product_attention)
        return self.norm(x)

    @functools.cached_property
    def _fused(self) -> FusedLayers | None:
        return fuse_layers(self.blocks, self.sizes.encoder)

    @functools.lru_cache(maxsize=4)  # noqa: B019 - a network lives as long as its process
    def _rotary_tables(self, *grid: int) -> RotaryTables:
        positions: list[tuple[int, int, int]] = list(product(*map(range, grid)))  # pyright: ignore[reportAssignmentType]
        return rotary_tables(positions, self.sizes.encoder, self.norm.weight)

    def encode_frames(self, pixels: Tensor) -> Tensor:
        """Encode frames one by one for the predictor: [frames, 3, height, width] to [frames, patches, width]."""
        encoded = self(pixels[:, :, None].expand(-1, -1, self.sizes.tubelet, -1, -1))
        return layer_norm(encoded.float(), encoded.shape[-1:])


class Predictor(nn.Module):
    """Predicts the next frame embedding from a frame embedding, an action and a pose."""

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
        """Maximum rows per pass through the layers. Only on a CPU are smaller passes faster."""
        if self.predictor_norm.weight.device.type != "cpu":
            return sys.maxsize
        return max(1, _HIDDEN_BYTES // (self.tokens * self.shape.hidden * self.predictor_norm.weight.element_size()))

    def empty_cache(self) -> Tensor:
        """Create the cells of an empty cache with one row."""
        shape = self.shape
        return self.predictor_norm.weight.new_empty((shape.depth, 2, 1, shape.heads, 0, shape.width // shape.heads))

    def forward(self, latents: Tensor, actions: Tensor, poses: Tensor, parts: Sequence[RowBlock]) -> Tensor:
        """Predict the next frame of each row, from [rows, patches, D], [rows, 7] and [rows, 7].

        `parts` are in order.
        """
        like = self.predictor_norm.weight
        conditions = [self.action_encoder(actions.to(like)), self.state_encoder(poses.to(like))]
        x = torch.cat([torch.stack(conditions, 1), self.predictor_embed(latents.to(like))], 1)
        tables = [self._rotary_tables(part.start // self.tokens) for part in parts]
        if self._fused is not None:
            for rows, rotary, part in zip(x.split([part.count for part in parts]), tables, parts, strict=True):
                self._fused(rows, rotary, part)
            return self.predictor_proj(self.predictor_norm(x[:, 2:]))
        if any(rotary is not tables[0] for rotary in tables):
            expanded = [
                [table.expand(part.count, -1, -1) for table in rotary]
                for rotary, part in zip(tables, parts, strict=True)
            ]
            tables = [RotaryTables(*map(torch.cat, zip(*expanded, strict=True)))]
        for layer, block in enumerate(self.predictor_blocks):
            first = 2 if layer == self.shape.depth - 1 else 0  # after the last layer only patches are needed
            x = block(x, tables[0], functools.partial(_attend, layer, parts), first)
        return self.predictor_proj(self.predictor_norm(x))

    def predict(self, latents: Tensor, actions: Tensor, poses: Tensor, parts: Sequence[RowBlock]) -> Tensor:
        """Predict normalized embeddings, with at most `max_rows` rows per pass."""
        first, results = 0, list[Tensor]()
        for block in split_rows(parts, self.max_rows):
            rows = slice(first, first := first + sum(part.count for part in block))
            results.append(self(latents[rows], actions[rows], poses[rows], block))
        return layer_norm(concat(results).float(), latents.shape[-1:])

    @functools.lru_cache(maxsize=16)  # noqa: B019 - a network lives as long as its process
    def _rotary_tables(self, frame: int) -> RotaryTables:
        """Return the tables of an action, a pose and the patches. The first two have no row and column."""
        side = range(self.sizes.grid)
        positions = [(frame, 0, 0)] * 2 + [(frame, row, column) for row in side for column in side]
        return rotary_tables(positions, self.shape, self.predictor_norm.weight)


def _attend(layer: int, parts: Sequence[RowBlock], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Write the keys and values of each part, then attend to its cache."""
    if len(parts) == 1:
        return _attend_part(layer, parts[0], query, key, value)
    counts = [part.count for part in parts]
    heads = zip(parts, *(tensor.split(counts) for tensor in (query, key, value)), strict=True)
    return torch.cat([_attend_part(layer, part, *qkv) for part, *qkv in heads])


def _attend_part(layer: int, part: RowBlock, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    keys, values, *fresh = part.cells[layer]
    fresh[0].copy_(key)
    fresh[1].copy_(value)
    if part.shared is None:
        return scaled_dot_product_attention(query, keys, values)
    # The shared cache is not copied to each row: the queries of all rows form one long query to it.
    shared_keys, shared_values = part.shared.valid_cells[layer, :, 0]
    rows, _, tokens, size = query.shape
    query = query * size**-0.5
    one_row = query.transpose(0, 1).flatten(1, 2)
    shared_weights = (one_row @ shared_keys.mT).unflatten(1, (rows, tokens)).transpose(0, 1)
    weights = torch.cat([shared_weights, query @ keys.mT], -1).softmax(-1)
    shared_weights, own_weights = weights.split([part.shared.length, part.own.length], -1)
    one_row = shared_weights.transpose(0, 1).flatten(1, 2) @ shared_values
    return one_row.unflatten(1, (rows, tokens)).transpose(0, 1) + own_weights @ values


def to_tensor(values: Any, device: torch.device | None = None) -> Tensor:
    """Copy client data to a tensor on a device. A tensor of an op is returned as it is if it is there."""
    tensor = values if isinstance(values, Tensor) else torch.tensor(values)
    return tensor if device is None else to_device(tensor, device)


def concat(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate. A single tensor is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def apply_actions(poses: Tensor, actions: Tensor) -> Tensor:
    """Return the poses after actions, [rows, 7]: position, three angles, and gripper."""
    rotation = _rotation_matrix(actions[:, 3:6].double()) @ _rotation_matrix(poses[:, 3:6].double())
    angles = [
        torch.atan2(rotation[:, 2, 1], rotation[:, 2, 2]),
        torch.asin(-rotation[:, 2, 0].clamp(-1, 1)),
        torch.atan2(rotation[:, 1, 0], rotation[:, 0, 0]),
    ]
    gripper = (poses[:, 6:] + actions[:, 6:]).clamp(0, 1)
    return torch.cat([poses[:, :3] + actions[:, :3], torch.stack(angles, 1).float(), gripper], 1)


def _rotation_matrix(angles: Tensor) -> Tensor:
    """Return extrinsic rotations about x, y, z: [rows, 3] to [rows, 3, 3]."""
    (a, b, c), (x, y, z) = angles.cos().unbind(1), angles.sin().unbind(1)
    rows = [b * c, x * y * c - a * z, a * y * c + x * z, b * z, x * y * z + a * c, a * y * z - x * c, -y, x * b, a * b]
    return torch.stack(rows, 1).unflatten(1, (3, 3))
