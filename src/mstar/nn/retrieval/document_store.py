"""Document store: passages in one file, read one by one by number. Only their offsets are in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mstar.nn.retrieval.documents import TextPassage

_PASSAGES, _OFFSETS = "passages.jsonl", "passages.npy"


class DocumentStore:
    """Passages of an index folder."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / _OFFSETS)
        self._file = os.open(folder / _PASSAGES, os.O_RDONLY | os.O_CLOEXEC)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> TextPassage:
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        return TextPassage(**json.loads(os.pread(self._file, end - start, start)))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def write_passages(folder: Path, passages: Iterable[TextPassage]) -> None:
    """Write the files of a store."""
    offsets = [0]
    with (folder / _PASSAGES).open("wb") as file:
        for passage in passages:
            file.write(json.dumps(asdict(passage), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            offsets.append(file.tell())
    np.save(folder / _OFFSETS, np.array(offsets, np.int64))
