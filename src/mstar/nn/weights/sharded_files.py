"""Reader of the shards of a checkpoint: of each tensor in its safetensors, only the part that a rank keeps.

What is one range of a file stays memory-mapped, as whole tensors do. Other parts, such as columns, are copied. The
pages of a file that a process touched count as its memory while the mapping exists, so copies have mappings of their
own, which end early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from mstar.nn.weights.progress import Progress
from mstar.nn.weights.shards import Shard

_COPY_BYTES = 1 << 24
"""Bytes that are copied from one mapping."""
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of a file, and the shard of it that is read."""

    name: str
    shape: list[int]
    element_bytes: int
    shard: Shard | None
    """None: all of it."""
    is_converted: bool
    """Whether transformers merges it with others, and so copies it."""

    @property
    def is_copied(self) -> bool:
        """Whether it is copied when it is read."""
        return self.shard is not None and not self.is_converted and not self.shard.is_contiguous(self.shape)

    @property
    def read_bytes(self) -> int:
        """Bytes that are read of it."""
        if self.shard is None:
            return prod(self.shape) * self.element_bytes
        if self.shard.is_zero:
            return 0
        return prod(self.shape) // self.shard.size * (self.shard.last - self.shard.first) * self.element_bytes


def find_sources(file: Path, network: Any, shards: Mapping[str, Shard]) -> list[Source] | None:
    """The tensors of a file, with their shards for the parameters of a network.

    None if a shard has no such parts: transformers converts tensors in a way that is not known here, or a shape differs
    from that of the network.
    """
    mapping = get_model_conversion_mapping(network)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    parameters = network.state_dict()
    sources: list[Source] = []
    for name, shape, element_bytes in _tensors(file):
        target, pattern = rename_source_key(name, renamings, converters, network.base_model_prefix, parameters)
        shard = shards.get(target if target in parameters else name)
        if shard is not None:
            shard = shard if pattern is None else _source_shard(by_pattern[pattern], shard)
            if shard is None or not shard.fits(shape):
                return None
        sources.append(Source(name, shape, element_bytes, shard, pattern is not None))
    return sources


def _tensors(file: Path) -> Iterator[tuple[str, list[int], int]]:
    """Name, shape and element size of the tensors of a file, of which only the header is read."""
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - not a dict
            tensor = opened.get_tensor(name)
            yield name, list(tensor.shape), tensor.element_size()


def _source_shard(converter: WeightConverter, shard: Shard) -> Shard | None:
    """The shard of each tensor that a converter merges into a parameter with this shard."""
    match converter.operations:
        case [MergeModulelist(dim=0)]:
            return shard
        case [MergeModulelist(dim=0), Concatenate(dim=1)] if shard.dim == -2 and shard.packed == len(
            converter.source_patterns
        ):
            return replace(shard, packed=1)
        case _:
            return None


def read_sources(files: Sequence[tuple[Path, Sequence[Source]]], progress: Progress) -> dict[str, Tensor]:
    """The shards of the tensors of these files, by name. Progress is in bytes that this rank reads."""
    tensors: dict[str, Tensor] = {}
    done, total = 0, sum(source.read_bytes for _, sources in files for source in sources)
    for file, sources in files:
        for group in filter(None, _mappings(sources)):
            with safe_open(file, framework="pt") as opened:
                for source in group:
                    tensors[source.name] = _read(opened, source)
                    done += source.read_bytes
                    progress(done, total)
    return tensors


def _mappings(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Groups of tensors of a file that are read from one mapping."""
    yield [source for source in sources if not source.is_copied and not source.is_converted]
    yield [source for source in sources if source.is_converted]
    group: list[Source] = []
    for source in sources:
        if source.is_copied:
            group.append(source)
            if sum(each.read_bytes for each in group) >= _COPY_BYTES:
                yield group
                group = []
    yield group


def _read(opened: Any, source: Source) -> Tensor:
    whole = opened.get_slice(source.name)
    part: Tensor = whole[...] if source.shard is None else source.shard.take(whole)
    if source.is_copied:
        return part.clone(memory_format=torch.contiguous_format)
    if not source.is_converted:  # read its pages now, so that the first request does not wait
        part.flatten().view(torch.uint8)[::_PAGE_BYTES].sum()
    return part
