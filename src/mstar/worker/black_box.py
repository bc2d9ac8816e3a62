"""The black box: which requests are in the batch that runs now, in a file that outlives the worker.

A worker that is killed cannot say what killed it. So it notes each batch before it runs and clears the note after; who
finds it dead reads the note. It is memory shared with a file: a note costs a few microseconds and no system call.
It keeps one note, not a history, and it accuses nobody: the conductor decides what a suspect is worth.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mstar.wire.messages import Suspect

FILE_SIZE_BYTES = 64 * 1024
_LENGTH_PREFIX_BYTES = 4
_EMPTY_LENGTH = bytes(_LENGTH_PREFIX_BYTES)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Suspect])


class BlackBox:
    """A worker's own side of the file."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> BlackBox:
        """Make the file, with nothing noted."""
        with path.open("w+b") as file:
            file.truncate(FILE_SIZE_BYTES)
            return cls(mmap.mmap(file.fileno(), FILE_SIZE_BYTES))

    def write(self, suspects: Sequence[Suspect]) -> None:
        """Note a batch; of a very large one, as many requests as fit."""
        data = _encoder.encode(suspects)
        while len(data) > FILE_SIZE_BYTES - _LENGTH_PREFIX_BYTES:
            suspects = suspects[: len(suspects) // 2]
            data = _encoder.encode(suspects)
        # The length is written last: a worker that dies in between has noted nothing, and its batch did not run yet.
        self._memory[:_LENGTH_PREFIX_BYTES] = _EMPTY_LENGTH
        self._memory[_LENGTH_PREFIX_BYTES : _LENGTH_PREFIX_BYTES + len(data)] = data
        self._memory[:_LENGTH_PREFIX_BYTES] = len(data).to_bytes(_LENGTH_PREFIX_BYTES, "little")

    def clear(self) -> None:
        """The batch has come to its end."""
        self._memory[:_LENGTH_PREFIX_BYTES] = _EMPTY_LENGTH

    def close(self) -> None:
        """Let the memory go; the file stays, as it was left."""
        self._memory.close()


def read(path: Path) -> list[Suspect]:
    """What a worker that is gone had noted. Nothing if it noted nothing whole, or never made its file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    length = int.from_bytes(data[:_LENGTH_PREFIX_BYTES], "little")
    try:
        return _decoder.decode(data[_LENGTH_PREFIX_BYTES : _LENGTH_PREFIX_BYTES + length]) if length else []
    except msgspec.MsgspecError:  # not one of our notes
        return []
