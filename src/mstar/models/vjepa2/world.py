"""A world: what a predictor was shown and what it imagined since, of one plan or of many that share their beginning.

A fork copies nothing. What forks have in common lies in memory that is only added to: the first who goes on takes the
place behind it, and whoever comes later finds it taken and copies what is its own. Nothing is computed here.
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
"""So many frames a world remembers: it was not trained with more."""


class KVBuffer:
    """Keys and values of all layers: `length` tokens of [layers, 2, rows, heads, tokens, size]. It is not changed."""

    def __init__(self, cells: Tensor, length: int, used_tokens: list[int]) -> None:
        self.cells = cells
        self.length = length
        self._used_tokens = used_tokens
        """How many tokens the cells hold, whosever they are: one number for all who share them."""

    @classmethod
    def from_cells(cls, cells: Tensor) -> KVBuffer:
        """All that these cells hold."""
        return cls(cells, cells.shape[4], [cells.shape[4]])

    @property
    def valid_cells(self) -> Tensor:
        """The cells that are its own."""
        return self.cells[:, :, :, :, : self.length]

    def extended(self, count: int, capacity: int) -> KVBuffer:
        """The same with so many tokens more, yet to be written. If their place is taken, or there is none, it is a copy
        that has room for more."""
        cells, taken, length = self.cells, self._used_tokens, self.length + count
        if taken[0] != self.length or length > cells.shape[4]:
            shape = [*cells.shape]
            shape[4] = self.length + max(count, capacity)
            cells, taken = cells.new_empty(shape), [self.length]
            cells[:, :, :, :, : self.length] = self.valid_cells
        taken[0] = length
        return KVBuffer(cells, length, taken)


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a world of which a step is taken: what all have seen, and where each writes what it sees now."""

    shared: KVBuffer | None
    own: KVBuffer
    start: int
    """So many tokens were seen before."""
    first: int
    count: int

    @functools.cached_property
    def cells(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Of each layer the keys and the values that these rows own, and of both those that are yet to be written."""
        own = self.own.valid_cells.narrow(2, self.first, self.count)
        fresh = own[:, :, :, :, self.start - (self.shared.length if self.shared else 0) :]
        return [(*whole, *new) for whole, new in zip(own, fresh, strict=True)]  # pyright: ignore[reportReturnType]


def split_rows(parts: Sequence[RowBlock], size: int) -> Iterator[list[RowBlock]]:
    """The same rows in the same order, at most so many at once."""
    some, room = list[RowBlock](), size
    for part in parts:
        first, end = part.first, part.first + part.count
        while first < end:
            count = min(room, end - first)
            some.append(RowBlock(part.shared, part.own, part.start, first, count))
            first, room = first + count, room - count
            if not room:
                yield some
                some, room = [], size
    if some:
        yield some


class World(State):
    """Memory of a predictor, and what it sees now: one row, or a row for each plan that is followed."""

    def __init__(self) -> None:
        self.latents: Tensor | None = None
        """[rows, patches, width]."""
        self.poses: Tensor | None = None
        """[rows, 7]."""
        self.shared: KVBuffer | None = None
        """What was seen before plans parted: of one row."""
        self.own: KVBuffer | None = None
        """What each plan has led to since: of as many rows as there are plans."""
        self.reserved_steps = 1
        """For how many actions room is made at once."""

    def observe(self, latents: Tensor, pose: Tensor, horizon: int) -> None:
        """This is seen now, and here is the hand, whatever was imagined."""
        if self.own is not None:
            what = f"{self.own.cells.shape[2]} plans are followed in this world, and one frame is seen"
            raise BadShape(f"{what}\n  fix: show it to the world that the plans were forked from")
        self.latents, self.poses, self.reserved_steps = latents[None], pose[None], horizon

    def current(self, rows: int) -> tuple[Tensor, Tensor]:
        """What so many plans see, and where each has its hand. Plans that have not parted see the same."""
        if self.latents is None or self.poses is None:
            raise BadShape("nothing was seen in this world\n  fix: observe a frame before the first action")
        if len(self.latents) not in (1, rows) or (self.own is not None and len(self.latents) != rows):
            what = f"{len(self.latents)} plans are followed in this world, and there are actions for {rows}"
            raise BadShape(f"{what}\n  fix: give one action for each; fork the world before plans part")
        return self.latents.expand(rows, -1, -1), self.poses.expand(rows, -1)

    def reserve(self, rows: int, tokens: int, empty_cache: Callable[[], Tensor]) -> RowBlock:
        """Room for what so many plans see now; `blank` gives cells of one row and no token."""
        before = sum(one.length for one in (self.shared, self.own) if one is not None)
        if before >= MAX_FRAMES * tokens:
            raise BadShape(f"{MAX_FRAMES} frames were seen in this world\n  fix: begin another with what is seen now")
        room = self.reserved_steps * tokens
        if self.own is None and rows == 1:
            self.shared = (self.shared or KVBuffer.from_cells(empty_cache())).extended(tokens, room)
            return RowBlock(None, self.shared, before, 0, 1)
        self.own = (self.own or KVBuffer.from_cells(empty_cache().repeat_interleave(rows, 2))).extended(tokens, room)
        return RowBlock(self.shared, self.own, before, 0, rows)

    # ---------------------------------------------------------------- a state is a value
    def fork(self) -> Self:
        """A world that goes its own way. Tensors are shared: none is changed where another sees it."""
        forked = type(self)()
        forked.rollback(self.snapshot())
        return forked

    def snapshot(self) -> Mapping[str, Any]:
        """What it is made of now."""
        return dict(vars(self))

    def export(self) -> dict[str, Any]:
        """All of it, without the room that is left in its memory."""
        kept = {
            name: one.valid_cells.contiguous() if isinstance(one, KVBuffer) else one for name, one in vars(self).items()
        }
        return {name: one for name, one in kept.items() if one is not None}

    def load(self, exported: Mapping[str, Any]) -> None:
        """Be what was exported elsewhere."""
        memories = {name: KVBuffer.from_cells(exported[name]) for name in ("shared", "own") if name in exported}
        vars(self).update({**exported, **memories})
