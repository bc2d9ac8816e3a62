"""Remote store interface: reads a slot of an arena on another host.

Every implementation follows the rule of the arena: bytes are valid only if the table still names their generation after
the read. `remote_arrays` chooses the store and owns the receive buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol, TypeAlias

import msgspec

NonNegativeInt: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class RemoteExport(msgspec.Struct, frozen=True, array_like=True):
    """Location of an array outside of the arena."""

    number: NonNegativeInt
    """Index among all arrays of the value."""
    address: NonNegativeInt
    length: NonNegativeInt


class RemoteSlot(msgspec.Struct, frozen=True, array_like=True):
    """Location of the arrays of one value, for exactly one reader on another host."""

    store: str
    """Kind and address of the sender's store: "mooncake 10.0.0.2:16984"."""
    arena_address: NonNegativeInt
    """Address of the arena in the memory of the sender."""
    slot: NonNegativeInt
    offset: NonNegativeInt
    length: NonNegativeInt
    generation: NonNegativeInt
    parts: tuple[NonNegativeInt, ...]
    """Length of each array of the slot in bytes."""
    exports: tuple[RemoteExport, ...] = ()
    """The other arrays of the value, which the sender keeps until the slot is read."""

    @property
    def target(self) -> str:
        """Address of the store of the sender."""
        return self.store.partition(" ")[2]


class RemoteStore(Protocol):
    """Reads arenas of other hosts, and serves the arena of this process to them."""

    name: str
    """Kind and address, as in `RemoteSlot.store`."""

    def register_memory(self, address: int, size: int) -> None:
        """Register memory to read into."""
        ...

    def unregister_memory(self, address: int) -> None:
        """Unregister memory."""
        ...

    serves_exports: bool
    """Whether other hosts can read what `serve_memory` gets."""

    def serve_memory(self, address: int, size: int) -> None:
        """Serve memory beside the arena."""
        ...

    def stop_serving(self, address: int) -> None:
        """Stop serving memory."""
        ...

    def read(
        self, slot: RemoteSlot, address: int, into: memoryview, exports: Sequence[tuple[int, memoryview]] = ()
    ) -> None:
        """Read a slot into memory with ENTRY_BYTES of space after its aligned end, and mark it as read.

        Before that, the exports of the slot are read to these addresses.

        Raises PeerUnreachable or StaleSlot. The store keeps a reference to the memory while a transfer can write to it.
        """
        ...

    def free(self, slot: RemoteSlot) -> None:
        """Mark a slot as read without reading it. Raises PeerUnreachable."""
        ...

    def forget(self, target: str) -> None:
        """Close the connections to a store."""
        ...

    def close(self) -> None:
        """Stop all threads and close all connections."""
        ...


class PeerUnreachable(Exception):
    """The remote store did not answer in time."""


class StaleSlot(Exception):
    """The slot was freed or reused."""
