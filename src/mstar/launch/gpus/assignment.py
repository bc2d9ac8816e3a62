"""Assignment of the visible GPUs of this host to workers, and the GPUs that no worker uses.

A worker with `device = "cuda:1"` gets the second visible GPU. Workers with `device = "cuda"` get, in their order, the
GPUs that no other worker names; if there are more workers than GPUs, they share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mstar.errors import PlacementError, Problem, format_count, format_names
from mstar.plan.placement import Placement

CUDA = "cuda"


class AssignedGpu(NamedTuple):
    """The GPU of a worker."""

    name: str
    """Its name in a placement: its number among the visible GPUs of the launcher, as `cuda:1`."""
    identifier: str
    """Value of CUDA_VISIBLE_DEVICES that makes it the only visible one."""


def worker_devices(placements: Iterable[Placement]) -> dict[str, str]:
    """Device of each worker that has one, in the order of the workers."""
    resources = {
        name: placement.worker_resources[name]
        for placement in placements
        for name in placement.workers()
        if name in placement.worker_resources
    }
    return {name: worker.device for name, worker in resources.items() if worker.device}


def assign_gpus(devices: Mapping[str, str], visible: Sequence[str] | None) -> dict[str, AssignedGpu]:
    """The GPU of each worker with a CUDA device. Raises PlacementError if it is not visible.

    `visible` has the identifiers of the visible GPUs; if they are not known (None), a worker with `cuda` gets none, and
    torch chooses.
    """
    numbers = {
        worker: int(number) if number else None
        for worker, device in devices.items()
        for kind, _, number in (device.partition(":"),)
        if kind == CUDA
    }
    if visible is not None:
        _check_visible(numbers, visible)
    named = {number for number in numbers.values() if number is not None}
    count = 0 if visible is None else len(visible)
    unnamed = [number for number in range(count) if number not in named] or [*range(count)]
    assigned: dict[str, AssignedGpu] = {}
    shares = 0
    for worker, number in numbers.items():
        if number is None:
            if not unnamed:
                continue
            number, shares = unnamed[shares % len(unnamed)], shares + 1  # noqa: PLW2901 - the next one
        assigned[worker] = AssignedGpu(f"{CUDA}:{number}", visible[number] if visible else str(number))
    return assigned


def _check_visible(numbers: Mapping[str, int | None], visible: Sequence[str]) -> None:
    names = format_names([f"{CUDA}:{number}" for number in range(len(visible))]) if visible else "none"
    fix = f"use one of {names}, or add it to CUDA_VISIBLE_DEVICES" if visible else "add it to CUDA_VISIBLE_DEVICES"
    problems = [
        Problem(f"[workers.{worker}]", f"the GPU {CUDA}:{number or 0} is not visible; visible: {names}", fix)
        for worker, number in numbers.items()
        if (number or 0) >= len(visible)
    ]
    if problems:
        raise PlacementError("placement", problems)


def unused_gpus(devices: Mapping[str, str], visible: Sequence[str]) -> tuple[str, str] | None:
    """What is wrong, and the fix, if a visible GPU is used by no worker with these devices; None if all are used."""
    used = {gpu.name for gpu in assign_gpus(devices, visible).values()}
    unused = [name for number in range(len(visible)) if (name := f"{CUDA}:{number}") not in used]
    if not unused:
        return None
    fix = f'write in the placement: [workers.NAME] device = "{unused[0]}"; or hide them with CUDA_VISIBLE_DEVICES'
    if used:
        return f"no worker uses {len(unused)} of {len(visible)} visible GPUs: {format_names(unused)}", fix
    verb = "is" if len(visible) == 1 else "are"
    return f"{format_count(len(visible), 'GPU')} {verb} visible and no worker of the placement uses one", fix
