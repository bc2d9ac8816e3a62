"""World state of V-JEPA 2-AC: KV cache, current embeddings and poses, for one plan or for parallel plans.

A fork copies nothing: forks share append-only buffers. The first fork that appends takes the free space behind the
shared part; a later one copies (copy-on-write). Nothing is computed here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mstar import State
from mstar.errors import BadShape

if TYPE_CHECKING:
    from torch import Tensor

MAX_FRAMES = 64
"""Maximum frames of a world: the training length."""


class KVBuffer:
    """Immutable view of keys and values: `length` tokens of [layers, 2, rows, heads, tokens, size]."""

    def __init__(self, cells: Tensor, length: int, used_tokens: list[int]) -> None:
        self.cells = cells
        self.length = length
        self._used_tokens = used_tokens
        """Number of tokens in the cells, shared by all views of them."""

    @classmethod
    def from_cells(cls, cells: Tensor) -> KVBuffer:
        """Create a view of all cells."""
        return cls(cells, cells.shape[4], [cells.shape[4]])

    @property
    def valid_cells(self) -> Tensor:
        """The cells of this view."""
        return self.cells[:, :, :, :, : self.length]

    def extended(self, count: int, capacity: int) -> KVBuffer:
        """Return a view with `count` more tokens to write. Copies the cells, with room for `capacity`, if the space is
        taken or too small.
        """
        cells, used_tokens, length = self.cells, self._used_tokens, self.length + count
        if used_tokens[0] != self.length or length > cells.shape[4]:
            shape = [*cells.shape]
            shape[4] = self.length + max(count, capacity)
            cells, used_tokens = cells.new_empty(shape), [self.length]
            cells[:, :, :, :, : self.length] = self.valid_cells
        used_tokens[0] = length
        return KVBuffer(cells, length, used_tokens)


@dataclass(frozen=True)
class RowBlock:
    """Rows of a world that take a step together: the shared cache, and the own cache with space to write."""

    shared: KVBuffer | None
    own: KVBuffer
    start: int
    """Tokens before this step."""
    first: int
    count: int

    @functools.cached_property
    def cells(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Per layer: own keys and values, then the slices of both to write in this step."""
        own = self.own.valid_cells.narrow(2, self.first, self.count)
        fresh = own[:, :, :, :, self.start - (self.shared.length if self.shared else 0) :]
        return [(*whole, *new) for whole, new in zip(own, fresh, strict=True)]  # pyright: ignore[reportReturnType]


def split_rows(parts: Sequence[RowBlock], size: int) -> Iterator[list[RowBlock]]:
    """Split the rows, in order, into blocks of at most `size` rows."""
    block, room = list[RowBlock](), size
    for part in parts:
        first, end = part.first, part.first + part.count
        while first < end:
            count = min(room, end - first)
            block.append(RowBlock(part.shared, part.own, part.start, first, count))
            first, room = first + count, room - count
            if not room:
                yield block
                block, room = [], size
    if block:
        yield block


class World(State):
    """KV cache and current observation: one row, or one row per plan."""

    def __init__(self) -> None:
        self.latents: Tensor | None = None
        """[rows, patches, width]."""
        self.poses: Tensor | None = None
        """[rows, 7]."""
        self.shared: KVBuffer | None = None
        """KV of the steps before plans diverge, one row."""
        self.own: KVBuffer | None = None
        """KV of the steps after plans diverge, one row per plan."""
        self.reserved_steps = 1
        """Actions to allocate space for at once."""

    def observe(self, latents: Tensor, pose: Tensor, horizon: int) -> None:
        """Set the observed frame and pose, replacing what was predicted."""
        if self.own is not None:
            what = f"this world has {self.own.cells.shape[2]} plans, and the observation is one frame"
            raise BadShape(f"{what}\n  fix: observe in the world that the plans were forked from")
        self.latents, self.poses, self.reserved_steps = latents[None], pose[None], horizon

    def current(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return embeddings and poses of this number of plans. Plans that have not diverged share one row."""
        if self.latents is None or self.poses is None:
            raise BadShape("this world has no observation\n  fix: observe a frame before the first action")
        if len(self.latents) not in (1, rows) or (self.own is not None and len(self.latents) != rows):
            what = f"this world has {len(self.latents)} plans, and there are actions for {rows}"
            raise BadShape(f"{what}\n  fix: send one action per plan, and fork the world before plans diverge")
        return self.latents.expand(rows, -1, -1), self.poses.expand(rows, -1)

    def reserve(self, rows: int, tokens: int, empty_cache: Callable[[], Tensor]) -> RowBlock:
        """Allocate space for the next step of this number of plans. `empty_cache` creates cells with one row."""
        before = sum(buffer.length for buffer in (self.shared, self.own) if buffer is not None)
        if before >= MAX_FRAMES * tokens:
            raise BadShape(
                f"this world has {MAX_FRAMES} frames, the maximum\n  fix: start a new world with the current frame"
            )
        room = self.reserved_steps * tokens
        if self.own is None and rows == 1:
            self.shared = (self.shared or KVBuffer.from_cells(empty_cache())).extended(tokens, room)
            return RowBlock(None, self.shared, before, 0, 1)
        self.own = (self.own or KVBuffer.from_cells(empty_cache().repeat_interleave(rows, 2))).extended(tokens, room)
        return RowBlock(self.shared, self.own, before, 0, rows)

    # ---------------------------------------------------------------- State interface
    def fork(self) -> Self:
        """Fork the world. Tensors are shared, because none is changed in place where another world reads it."""
        forked = type(self)()
        forked.rollback(self.snapshot())
        return forked

    def snapshot(self) -> Mapping[str, Any]:
        """Return the current attributes."""
        return dict(vars(self))

    def export(self) -> dict[str, Any]:
        """Return all attributes, without unused space in the buffers."""
        values = {
            name: value.valid_cells.contiguous() if isinstance(value, KVBuffer) else value
            for name, value in vars(self).items()
        }
        return {name: value for name, value in values.items() if value is not None}

    def load(self, exported: Mapping[str, Any]) -> None:
        """Restore what another worker exported."""
        buffers = {name: KVBuffer.from_cells(exported[name]) for name in ("shared", "own") if name in exported}
        vars(self).update({**exported, **buffers})
