"""Assignment of the visible GPUs of this host to workers, and the GPUs that no worker uses.

A worker with `device = "cuda:1"` gets the second visible GPU. Workers with `device = "cuda"` get, in their order, the
GPUs that no other worker names; if there are more workers than GPUs, they share them. A worker with several ranks gets
one for each: with `device = "cuda:1"` the second and those after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mstar.errors import PlacementError, Problem, format_count, format_names
from mstar.plan.placement import Placement, Resources

CUDA = "cuda"


class AssignedGpus(NamedTuple):
    """The GPUs of a worker, one per rank."""

    names: tuple[str, ...]
    """Their names in a placement: their numbers among the visible GPUs of the launcher, as `cuda:1`."""
    identifiers: str
    """Value of CUDA_VISIBLE_DEVICES that makes them the only visible ones."""


def worker_devices(placements: Iterable[Placement]) -> dict[str, str]:
    """Device of each worker that has one, in the order of the workers."""
    return {name: worker.device for name, worker in _resources(placements).items() if worker.device}


def worker_ranks(placements: Iterable[Placement]) -> dict[str, int]:
    """Number of ranks of each worker that has several."""
    return {name: worker.ranks for name, worker in _resources(placements).items() if worker.ranks > 1}


def _resources(placements: Iterable[Placement]) -> dict[str, Resources]:
    return {
        name: placement.worker_resources[name]
        for placement in placements
        for name in placement.workers()
        if name in placement.worker_resources
    }


def assign_gpus(
    devices: Mapping[str, str], visible: Sequence[str] | None, ranks: Mapping[str, int] | None = None
) -> dict[str, AssignedGpus]:
    """The GPUs of each worker with a CUDA device. Raises PlacementError if one is not visible.

    `visible` has the identifiers of the visible GPUs; if they are not known (None), a worker with `cuda` gets none, and
    torch chooses. `ranks` has the workers with several.
    """
    needed = {
        worker: (int(number) if number else None, (ranks or {}).get(worker, 1))
        for worker, device in devices.items()
        for kind, _, number in (device.partition(":"),)
        if kind == CUDA
    }
    if visible is not None:
        _check_visible(needed, visible)
    named = {first + rank for first, count in needed.values() if first is not None for rank in range(count)}
    visible_count = 0 if visible is None else len(visible)
    unnamed = [number for number in range(visible_count) if number not in named]
    assigned: dict[str, AssignedGpus] = {}
    shares = 0
    for worker, (first, count) in needed.items():
        if first is not None:
            numbers = [*range(first, first + count)]
        else:
            pool = unnamed if len(unnamed) >= count else [*range(visible_count)]
            if not pool:
                continue
            numbers, shares = [pool[(shares + rank) % len(pool)] for rank in range(count)], shares + count
        names = tuple(f"{CUDA}:{number}" for number in numbers)
        assigned[worker] = AssignedGpus(
            names, ",".join(visible[number] if visible else str(number) for number in numbers)
        )
    return assigned


def _check_visible(needed: Mapping[str, tuple[int | None, int]], visible: Sequence[str]) -> None:
    names = format_names([f"{CUDA}:{number}" for number in range(len(visible))]) if visible else "none"
    fix = f"use one of {names}, or add it to CUDA_VISIBLE_DEVICES" if visible else "add it to CUDA_VISIBLE_DEVICES"
    last = {worker: (first or 0) + count - 1 for worker, (first, count) in needed.items()}
    problems = [
        Problem(f"[workers.{worker}]", f"the GPU {CUDA}:{number} is not visible; visible: {names}", fix)
        for worker, number in last.items()
        if number >= len(visible)
    ]
    if problems:
        raise PlacementError("placement", problems)


def unused_gpus(
    devices: Mapping[str, str], visible: Sequence[str], ranks: Mapping[str, int] | None = None
) -> tuple[str, str] | None:
    """What is wrong, and the fix, if a visible GPU is used by no worker with these devices; None if all are used."""
    used = {name for gpus in assign_gpus(devices, visible, ranks).values() for name in gpus.names}
    unused = [name for number in range(len(visible)) if (name := f"{CUDA}:{number}") not in used]
    if not unused:
        return None
    fix = f'write in the placement: [workers.NAME] device = "{unused[0]}"; or hide them with CUDA_VISIBLE_DEVICES'
    if used:
        return f"no worker uses {len(unused)} of {len(visible)} visible GPUs: {format_names(unused)}", fix
    verb = "is" if len(visible) == 1 else "are"
    return f"{format_count(len(visible), 'GPU')} {verb} visible and no worker of the placement uses one", fix
