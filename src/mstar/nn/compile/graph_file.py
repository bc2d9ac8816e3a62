"""File format of the graph cache: captured graphs and their packed constants, memory-mapped.

A file has the tensors, each at an aligned offset, then a table (`_Footer`) with the operations of the graphs, then its
checksum and length. It is written under a temporary name and renamed when it is complete. The results of a trial run
are stored too: a file is used only if the same run gives the same bits again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from mstar.nn.compile import flat_graph
from mstar.nn.compile.batch_dependence import batch_dependence
from mstar.nn.compile.flat_graph import Evaluator, FlatGraph, Recipe
from mstar.nn.lm.adapters.low_rank import Linear
from mstar.nn.self_check import require_close

MAX_CACHE_BYTES = 8 << 30
"""Maximum size of all entries."""
MAX_ENTRY_BYTES = 2 << 30
"""Maximum size of an entry. Larger networks are captured at every start."""
SUFFIX = ".graph"
_INCOMPLETE = ".new"
_INCOMPLETE_S = 3600
"""Age in seconds after which an incomplete file belongs to a process that was killed."""
_ALIGNMENT_BYTES = 4096

_OTHER_VERSIONS = "install another version of torch or transformers: with these, capturing the network changes it"

log = logging.getLogger("mstar.nn.graph_cache")

CapturedGraph = tuple[FlatGraph, Callable[[str], Tensor]]
"""A graph, and a function that returns its tensors by name."""


@dataclass(frozen=True, slots=True)
class StoredGraphs:
    """Content of a file."""

    functions: list[Callable[..., Any]]
    """The graphs with their constants."""
    linears: list[tuple[Linear, ...]]
    """Products of each graph that adapters can change."""
    batch_dependences: list[str]
    """Why results of each graph can depend on the batch; empty if they cannot."""
    tensors: list[Tensor]
    """Tensors that are used without a graph, such as an embedding."""
    numbers: dict[str, int | None]


TrialRun = Callable[[StoredGraphs], list[Tensor]]


@dataclass(frozen=True, slots=True)
class GraphsToStore:
    """What is written to a file."""

    graphs: Sequence[CapturedGraph]
    tensors: Sequence[Tensor]
    numbers: Mapping[str, int | None] = field(default_factory=dict[str, int | None])

    def max_bytes(self) -> int:
        """Upper bound of the size of the file: a packed constant has padding, and can exist plain and packed."""
        constants = sum(tensor.nbytes for flat, get in self.graphs for tensor in Evaluator(get).tensors(flat.constants))
        return constants + 2 * sum(tensor.nbytes for tensor in self.tensors)


class _Stored(msgspec.Struct, array_like=True):
    """A tensor in the file."""

    dtype: str
    shape: list[int]
    offset: int


class _StoredGraph(msgspec.Struct, array_like=True):
    """A graph in the file. Its constants name tensors by index."""

    nodes: list[Any]
    constants: list[Any]
    linears: tuple[Linear, ...]


class _Footer(msgspec.Struct, array_like=True):
    """Table of an entry, after its tensors."""

    graphs: list[_StoredGraph]
    numbers: dict[str, int | None]
    tensors: list[_Stored]
    plain: list[int]
    """Indices of the tensors that are used without a graph."""
    trial: list[_Stored]
    """Results of the trial run."""


def read_graphs(path: Path, trial_run: TrialRun) -> StoredGraphs | None:
    """The content of a file; None if there is none. A file that fails its trial run is removed."""
    try:
        data = np.memmap(path, np.uint8, mode="c")
        footer = _read_footer(data)
        stored = _bind(data, footer)
        recorded = [_tensor(data, one) for one in footer.trial]
        if not all(map(torch.equal, trial_run(stored), recorded)):
            raise ValueError("the trial run gives other results than recorded")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RuntimeError, msgspec.MsgspecError) as error:
        log.warning("the cached graph %s is not used and is removed: %s", path.name, error)
        with suppress(OSError):
            path.unlink()
        return None
    with suppress(OSError):
        os.utime(path)  # the oldest entries are removed first
    return stored


def write_graphs(
    path: Path, content: GraphsToStore, trial_run: TrialRun, expected: Sequence[Tensor] | None
) -> StoredGraphs:
    """Write a file, and return its content, mapped. `expected` are the results of the network's own code.

    Raises OSError, NotEncodable, or LoadError if the trial run gives other results than expected.
    """
    nodes = [flat_graph.encode(flat.graph) for flat, _ in content.graphs]
    path.parent.mkdir(parents=True, exist_ok=True)
    free = min(shutil.disk_usage(path.parent).free // 2, MAX_ENTRY_BYTES)
    if (size := content.max_bytes()) > free:
        raise OSError(f"it needs up to {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB can be used in {path.parent}")
    with (
        NamedTemporaryFile(dir=path.parent, prefix=f"{path.stem}.", suffix=_INCOMPLETE, delete=False) as file,
        _removed_on_error(Path(file.name)) as temporary,
    ):
        writer = _Writer(file)
        plain = [writer.add(tensor) for tensor in content.tensors]
        graphs: list[_StoredGraph] = []
        for rows, (flat, get) in zip(nodes, content.graphs, strict=True):
            evaluate = Evaluator(get)
            constants = [_stored_recipe(recipe, evaluate, writer) for recipe in flat.constants]
            graphs.append(_StoredGraph(rows, constants, flat.linears))
        file.flush()
        footer = _Footer(graphs, dict(content.numbers), list(writer.tensors.values()), plain, [])
        stored = _bind(np.memmap(temporary, np.uint8, mode="c"), footer)
        results = trial_run(stored)
        for result, wanted in zip(results, expected or results, strict=True):
            require_close(result, wanted, "the captured graph differs from the network", _OTHER_VERSIONS)
        footer.trial = [writer.write(result) for result in results]
        encoded = msgspec.msgpack.encode(footer)
        file.write(encoded + hashlib.blake2b(encoded, digest_size=16).digest() + len(encoded).to_bytes(8, "little"))
        file.flush()
        temporary.replace(path)
    _remove_oldest(path.parent)
    return stored


@contextmanager
def _removed_on_error(path: Path) -> Iterator[Path]:
    try:
        yield path
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _stored_recipe(recipe: Recipe, evaluate: Evaluator, writer: _Writer) -> Recipe:
    """Store the tensor of a recipe. A oneDNN layout is opaque, so the plain matrix is stored and packed when read."""
    if recipe[0] == "onednn":
        return "onednn", _stored_recipe(recipe[1], evaluate, writer)
    return "tensor", writer.add(evaluate(recipe))


class _Writer:
    """Writes tensors at aligned offsets."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.tensors: dict[Any, _Stored] = {}
        self._kept: list[Tensor] = []

    def add(self, tensor: Tensor) -> int:
        """Write a tensor unless it was written before (tied weights); return its index."""
        key = tensor.data_ptr(), tuple(tensor.shape), tensor.dtype
        if key not in self.tensors:
            self.tensors[key] = self.write(tensor)
            self._kept.append(tensor)
        return [*self.tensors].index(key)

    def write(self, tensor: Tensor) -> _Stored:
        """Write a tensor."""
        offset = self._file.seek(-(-self._file.tell() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        plain = tensor.detach().contiguous().flatten()
        self._file.write((plain if plain.numel() else plain.new_zeros(1)).view(torch.uint8).numpy().data)
        return _Stored(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset)


def _read_footer(data: np.ndarray) -> _Footer:
    """The table of an entry. Raises ValueError or MsgspecError if it is damaged."""
    length = int.from_bytes(data[-8:].tobytes(), "little")
    encoded, digest = data[-24 - length : -24].tobytes(), data[-24:-8].tobytes()
    if hashlib.blake2b(encoded, digest_size=16).digest() != digest:
        raise ValueError("checksum mismatch")
    return msgspec.msgpack.decode(encoded, type=_Footer)


def _bind(data: np.ndarray, footer: _Footer) -> StoredGraphs:
    tensors = [_tensor(data, stored) for stored in footer.tensors]
    flats = [
        FlatGraph(flat_graph.decode(graph.nodes), tuple(map(_as_recipe, graph.constants)), None)
        for graph in footer.graphs
    ]
    functions = [flat.bind(lambda index: tensors[int(index)]) for flat in flats]
    linears, reasons = [graph.linears for graph in footer.graphs], [batch_dependence(flat.graph) for flat in flats]
    return StoredGraphs(functions, linears, reasons, [tensors[index] for index in footer.plain], footer.numbers)


def _as_recipe(plain: Any) -> Recipe:
    return tuple(_as_recipe(part) if isinstance(part, list) else part for part in plain)


def _tensor(data: np.ndarray, stored: _Stored) -> Tensor:
    dtype = getattr(torch, stored.dtype)
    count = int(np.prod(stored.shape))
    part = torch.from_numpy(data[stored.offset : stored.offset + max(1, count) * dtype.itemsize])
    return part.view(dtype)[:count].view(stored.shape)


def _remove_oldest(directory: Path) -> None:
    """Remove incomplete files of killed processes, and the least recently used entries above MAX_CACHE_BYTES."""
    with suppress(OSError):
        for file in directory.glob(f"*{_INCOMPLETE}"):
            if time.time() - file.stat().st_mtime > _INCOMPLETE_S:
                file.unlink()
        entries = [(file.stat().st_mtime, file.stat().st_size, file) for file in directory.glob(f"*{SUFFIX}")]
        total = 0
        for _, size, file in sorted(entries, reverse=True):
            total += size
            if total > MAX_CACHE_BYTES:
                file.unlink()
