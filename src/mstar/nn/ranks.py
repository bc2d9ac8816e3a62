"""Ranks: the processes that compute one component together, and the collective operations between them.

Every rank must run the same operations in the same order (`mstar.worker.ranks` takes care of that). A process is in one
group. The ranks of a group are on one host, and trust each other: their traffic is not encrypted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import prod

import torch
from torch import Tensor, distributed

from mstar.errors import DeviceFailed


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a group."""

    number: int
    count: int
    """Ranks of the group."""


@contextmanager
def join_group(address: str, number: int, count: int, *, timeout_s: float = 300) -> Iterator[Rank]:
    """Join the process group at `address` (tcp://host:port or file:///path) as a rank.

    A rank that waits for another rank longer than `timeout_s`, including its load time, raises an error.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    timeout = timedelta(seconds=timeout_s)
    with _group_errors():
        distributed.init_process_group(backend, init_method=address, rank=number, world_size=count, timeout=timeout)
    try:
        yield Rank(number, count)
    finally:
        distributed.destroy_process_group()


def all_reduce(part: Tensor) -> Tensor:
    """Sum of the parts of all ranks, on every rank (all-reduce)."""
    whole = _sent(part).clone(memory_format=torch.contiguous_format)
    with _group_errors():
        distributed.all_reduce(whole)
    return whole.to(part.device)


def gather(part: Tensor) -> list[Tensor]:
    """Parts of all ranks, which have one shape, on every rank."""
    own = _sent(part).contiguous()
    parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    with _group_errors():
        distributed.all_gather(parts, own)
    return [each.to(part.device) for each in parts]


def gather_ragged(part: Tensor, lengths: Sequence[int], axis: int) -> list[Tensor]:
    """Parts of all ranks, which differ in their lengths along an axis, on every rank."""
    longest, own = max(lengths), part.shape[axis]
    if own < longest:
        missing = list(part.shape)
        missing[axis] = longest - own
        part = torch.cat([part, part.new_zeros(missing)], axis)
    return [whole.narrow(axis, 0, length) for whole, length in zip(gather(part), lengths, strict=True)]


def all_to_all(parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Send a part to each rank, and return what each sent to this one, in these shapes (all-to-all)."""
    sent, sizes = [part.numel() for part in parts], [prod(shape) for shape in shapes]
    given = torch.cat([_sent(part).flatten() for part in parts])
    received = given.new_empty(sum(sizes))
    with _group_errors():
        distributed.all_to_all_single(received, given, sizes, sent)
    received = received.to(parts[0].device)
    return [each.view(shape) for each, shape in zip(received.split(sizes), shapes, strict=True)]


def least(value: int) -> int:
    """The least of the values of all ranks, on every rank."""
    shared = torch.tensor([value])
    with _group_errors():
        distributed.all_reduce(shared, distributed.ReduceOp.MIN)
    return int(shared)


def _sent(part: Tensor) -> Tensor:
    """A part where a backend of the group can send it: on its device, if there is one for it, or on the host."""
    return part if part.device.type in ("cpu", "cuda") else part.cpu()


@contextmanager
def _group_errors() -> Iterator[None]:
    """Report an error of the group: after it, the ranks have not computed the same."""
    try:
        yield
    except RuntimeError as error:
        problem = f"the ranks of this worker lost each other: {error}"
        raise DeviceFailed(f"{problem}\n  fix: start them again; if it happens again, read their logs") from error
