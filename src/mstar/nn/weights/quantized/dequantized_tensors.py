"""Tensors of a quantized checkpoint: each weight is read and dequantized when transformers takes it.

`DequantizedTensor` stands for a weight in the dictionary of tensors, like the slices of safetensors with which
transformers loads its own files. So the packed tensors of one weight are in memory at a time. How much memory experts
need while they are merged into one parameter was not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from mstar.errors import LoadError
from mstar.nn.weights.progress import Progress
from mstar.nn.weights.quantized.quantized_format import CONFIG, QuantizedFormat, TensorHeader

_MAPPED_BYTES = 1 << 26
"""Bytes that are read from one mapping of a file: pages that a process touched count as its memory until it ends."""
_PAGE_BYTES = 4096


class DequantizedTensor:
    """A weight that is computed when it is indexed with `...`."""

    def __init__(self, reader: _Reader, parts: Mapping[str, str]) -> None:
        self._reader = reader
        self._parts = parts

    def __getitem__(self, index: Any) -> Tensor:
        return self._reader.read(self._parts)[index]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a tensor is, and what it is."""

    file: Path
    header: TensorHeader
    size_bytes: int


class _Reader:
    """Reads and dequantizes one weight at a time."""

    def __init__(
        self, sources: Mapping[str, _Source], form: QuantizedFormat, dtype: torch.dtype, progress: Progress
    ) -> None:
        self._sources = sources
        self._form = form
        self._dtype = dtype
        self._progress = progress
        self._done, self._total = 0, sum(source.size_bytes for source in sources.values())
        self._opened: dict[Path, Any] = {}
        self._mapped = 0
        self._lock = Lock()

    def read(self, parts: Mapping[str, str]) -> Tensor:
        """Compute a weight from tensors, given by their names in the module and in the files.

        Threads of transformers call this, one at a time: torch uses all cores for one weight.
        """
        with self._lock:
            tensors = {part: self._open(self._sources[name].file).get_tensor(name) for part, name in parts.items()}
            try:
                weight = self._form.dequantize(tensors, self._dtype)
            except ValueError as error:
                raise _layout_error(self._sources, parts, error) from None
            size = self.count(parts.values())
            self._mapped += size
            if self._mapped >= _MAPPED_BYTES:
                self._opened.clear()
                self._mapped = 0
            return weight

    def count(self, names: Iterable[str]) -> int:
        """Report tensors as read. Returns their size in bytes."""
        size = sum(self._sources[name].size_bytes for name in names)
        self._done += size
        self._progress(self._done, self._total)
        return size

    def _open(self, file: Path) -> Any:
        if file not in self._opened:
            self._opened[file] = safe_open(file, framework="pt")
        return self._opened[file]


def read_dequantized(
    files: Mapping[Path, Sequence[str]], form: QuantizedFormat, dtype: torch.dtype, progress: Progress
) -> dict[str, Any]:
    """The tensors of these files: those of quantized modules as `DequantizedTensor`. Raises LoadError."""
    sources = {name: source for file, names in files.items() for name, source in _find_sources(file, names)}
    parts = _quantized_parts(sources, form)
    packed = {name for named in parts.values() for name in named.values()}
    unread = {name for name in sources if name.rpartition(".")[2] in form.unread and name not in packed}
    plain = sources.keys() - packed - unread
    if odd := sorted(name for name in plain if _is_quantized(sources[name].header)):
        raise LoadError(
            f"{sources[odd[0]].file}: {odd[0]} is {sources[odd[0]].header.dtype}, without the tensors of a quantized "
            f"weight\n  fix: use a checkpoint whose {CONFIG} in config.json describes its tensors"
        )
    reader = _Reader({name: sources[name] for name in plain | packed}, form, dtype, progress)
    tensors: dict[str, Any] = {}
    for file, names in files.items():
        with safe_open(file, framework="pt") as opened:
            for name in names:
                if name in plain:
                    tensor = tensors[name] = opened.get_tensor(name)
                    # Read its pages now, so that the first request does not wait.
                    tensor.flatten().view(torch.uint8)[::_PAGE_BYTES].sum()
                    reader.count([name])
    return tensors | {f"{module}.weight": DequantizedTensor(reader, named) for module, named in parts.items()}


def _find_sources(file: Path, names: Sequence[str]) -> Iterator[tuple[str, _Source]]:
    with safe_open(file, framework="pt") as opened:
        for name in names:
            tensor = opened.get_tensor(name)  # mapped, so only the header is read
            header = TensorHeader(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            yield name, _Source(file, header, tensor.nbytes)


def _quantized_parts(sources: Mapping[str, _Source], form: QuantizedFormat) -> dict[str, dict[str, str]]:
    """Names of the tensors of each quantized module, by their names in it. Raises LoadError for another layout."""
    modules: dict[str, dict[str, str]] = {}
    for name in sources:
        module, _, part = name.rpartition(".")
        if part in form.parts:
            modules.setdefault(module, {})[part] = name
    quantized = {module: parts for module, parts in modules.items() if not parts.keys().isdisjoint(form.markers)}
    for parts in quantized.values():
        try:
            form.check({part: sources[name].header for part, name in parts.items()})
        except ValueError as error:
            raise _layout_error(sources, parts, error) from None
    return quantized


def _layout_error(sources: Mapping[str, _Source], parts: Mapping[str, str], error: ValueError) -> LoadError:
    name = next(iter(parts.values()))
    return LoadError(
        f"{sources[name].file}: {name.rpartition('.')[0]} does not have the layout in {CONFIG}: {error}\n"
        f"  fix: use the config.json that the weights were saved with"
    )


def _is_quantized(header: TensorHeader) -> bool:
    return header.dtype.startswith(("float8", "float4", "float6")) or header.dtype in ("int8", "uint8")
