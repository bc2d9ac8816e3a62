"""What a store is: a way to read a slot of another host's arena, and what a reader has to know of the slot.

Every store keeps to the arena's rule: bytes count only if the table still names their generation after they were read.
Which store a process has, and where bytes land, is decided in afar.py.
"""

from __future__ import annotations

from typing import Annotated, Protocol, TypeAlias

import msgspec

NonNegativeInt: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class RemoteSlot(msgspec.Struct, frozen=True, array_like=True):
    """Where the arrays of one value lie, for exactly one reader on another host."""

    store: str
    """Kind and address of the sender's store: "mooncake 10.0.0.2:16984"."""
    arena_address: NonNegativeInt
    """Where the sender's arena begins in its memory."""
    slot: NonNegativeInt
    offset: NonNegativeInt
    length: NonNegativeInt
    generation: NonNegativeInt
    parts: tuple[NonNegativeInt, ...]
    """The length of each array."""

    @property
    def target(self) -> str:
        """The address of the sender's store."""
        return self.store.partition(" ")[2]


class RemoteStore(Protocol):
    """One way to read the arenas of other hosts, and to let them read this one."""

    name: str
    """Kind and address, as descriptors say it."""

    def register_memory(self, address: int, size: int) -> None:
        """From now on there may be read into this memory."""
        ...

    def unregister_memory(self, address: int) -> None:
        """And now no more."""
        ...

    def read(self, slot: RemoteSlot, address: int, into: memoryview) -> None:
        """Read a slot into memory that has ENTRY_BYTES more at its aligned end, and mark it. Raises Unreached, Stale.

        As long as something may still be written there, the store refers to the memory.
        """
        ...

    def free(self, slot: RemoteSlot) -> None:
        """Mark a slot as read that will not be read. Raises Unreached."""
        ...

    def forget(self, target: str) -> None:
        """Close what leads there."""
        ...

    def close(self) -> None:
        """End all threads and connections."""
        ...


class PeerUnreachable(Exception):
    """The far end did not answer, or not in time."""


class StaleSlot(Exception):
    """The slot does not hold this any more."""
