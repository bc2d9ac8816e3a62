"""Crash black box: records the requests of the running batch in a file that survives the worker.

A worker that is killed cannot report what killed it. It records each batch before it runs and clears the record after;
the launcher reads the file when the worker has died. The file is memory-mapped, so a record costs a few microseconds
and no system call. It holds one record, not a history. The conductor decides which suspect is at fault.

The blocks of the file are allocated at the start: a write to a hole of a mapped file on a full disk is SIGBUS. Without
space for the file the worker serves all the same, and its crash accuses no request.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mstar.wire.messages import Suspect

FILE_SIZE_BYTES = 64 * 1024
_LENGTH_PREFIX_BYTES = 4
_EMPTY_LENGTH = bytes(_LENGTH_PREFIX_BYTES)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Suspect])

log = logging.getLogger("mstar.worker")


class BlackBox:
    """Writing side of the file, in the worker."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> BlackBox:
        """Create the file without a record. If that fails, records stay in memory and are lost with the worker."""
        try:
            with path.open("w+b") as file:
                os.posix_fallocate(file.fileno(), 0, FILE_SIZE_BYTES)
                return cls(mmap.mmap(file.fileno(), FILE_SIZE_BYTES))
        except OSError as error:
            log.warning("no black box: %s; a crash of this worker accuses no request", error)
            return cls(mmap.mmap(-1, FILE_SIZE_BYTES))

    def write(self, suspects: Sequence[Suspect]) -> None:
        """Record a batch. Requests that do not fit into the file are left out."""
        data = _encoder.encode(suspects)
        while len(data) > FILE_SIZE_BYTES - _LENGTH_PREFIX_BYTES:
            suspects = suspects[: len(suspects) // 2]
            data = _encoder.encode(suspects)
        # The length is written last: if the worker dies in between, the record is empty and the batch has not run.
        self._memory[:_LENGTH_PREFIX_BYTES] = _EMPTY_LENGTH
        self._memory[_LENGTH_PREFIX_BYTES : _LENGTH_PREFIX_BYTES + len(data)] = data
        self._memory[:_LENGTH_PREFIX_BYTES] = len(data).to_bytes(_LENGTH_PREFIX_BYTES, "little")

    def clear(self) -> None:
        """Remove the record: the batch has finished."""
        self._memory[:_LENGTH_PREFIX_BYTES] = _EMPTY_LENGTH

    def close(self) -> None:
        """Unmap the file, which stays on disk with its last record."""
        self._memory.close()


def read(path: Path) -> list[Suspect]:
    """Suspects that a dead worker recorded; empty if it has no complete record or no readable file."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    length = int.from_bytes(data[:_LENGTH_PREFIX_BYTES], "little")
    try:
        return _decoder.decode(data[_LENGTH_PREFIX_BYTES : _LENGTH_PREFIX_BYTES + length]) if length else []
    except msgspec.MsgspecError:  # a torn or foreign record
        return []
