"""Warning of `mstar serve` about GPUs that are visible and that no worker uses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mstar.config import read_env_variable
from mstar.launch.gpus.assignment import unused_gpus
from mstar.launch.gpus.visible import VARIABLE, count_gpus, visible_gpus

if TYPE_CHECKING:
    from mstar.plan.planned_model import PlannedModel

log = logging.getLogger("mstar.serve")


def warn_unused_gpus(
    models: Mapping[str, PlannedModel], *, is_in_process: bool = False, installed: int | None = None
) -> None:
    """Log a warning if a visible GPU of this host is used by no worker. `installed` is by default counted."""
    installed = count_gpus() if installed is None else installed
    visible = visible_gpus(read_env_variable(VARIABLE), installed)
    if not installed or not visible:
        return
    devices = {
        worker: planned.devices[worker]
        for planned in models.values()
        for worker in planned.plans.workers
        if worker in planned.devices
    }
    ranks = {worker: count for planned in models.values() for worker, count in planned.ranks.items()}
    unused = unused_gpus({} if is_in_process else devices, visible, ranks)
    if unused is None:
        return
    what, fix = unused
    if is_in_process:
        fix = "serve without --in-process, which runs all components on the CPU"
    elif not devices and not any(
        component.runs_on_device for planned in models.values() for component in planned.model.components().values()
    ):
        fix = "none: the components of these models run on the CPU only (docs/gpu.md)"
    log.warning("%s; fix: %s", what, fix)
