"""Loading of the components of a worker: their devices, the memory that they share there, and the progress of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mstar.config import TwinConfig, WorkerConfig
from mstar.engine.executor import Executor
from mstar.errors import LoadError, format_names
from mstar.plan.planned_model import PlannedModel
from mstar.walk.component import Component
from mstar.walk.twin import TwinSizes
from mstar.wire.messages import Peer

if TYPE_CHECKING:
    from mstar.nn.device_memory import DeviceMemory
    from mstar.nn.ranks import Rank

log = logging.getLogger("mstar.worker")

CPU = "cpu"
"""Device of a component that no other device was set for."""
TWIN = "twin"
"""Device of a component without weights, as operators see it."""


def loading_progress_path(directory: Path, peer: Peer) -> Path:
    """File in which a worker reports its loading progress: components loaded, and the one it loads."""
    return directory / f"{peer}.loading"


class LoadingProgress:
    """Writer of the progress file. It is for display only: without space for it, loading continues.

    A rank other than 0 writes none.
    """

    def __init__(self, path: Path, rank: Rank | None) -> None:
        self._path = path
        self._is_writable = rank is None or rank.number == 0

    def write(self, loaded: int, component: str) -> None:
        """Report the component that is loaded next."""
        if not self._is_writable:
            return
        try:
            self._path.write_text(f"{loaded} {component}")
        except OSError as error:
            self._is_writable = False
            log.warning("the loading progress is not shown: %s", error)

    def remove(self) -> None:
        """Report that everything is loaded."""
        if self._is_writable:
            with suppress(OSError):
                self._path.unlink()


def rank_count(models: Mapping[str, PlannedModel], worker: str) -> int:
    """Number of ranks of a worker. Raises LoadError if the placements differ, or if no component can have ranks."""
    counts = {planned.ranks.get(worker, 1) for planned in models.values() if planned.components_at(worker)} or {1}
    if len(counts) > 1:
        problem = f"the placements give worker {worker} {format_names(map(str, sorted(counts)))} ranks"
        raise LoadError(f"{problem}\n  fix: write the same `ranks` in each of them")
    (count,) = counts
    if count > 1 and not components_with_ranks(models, worker):
        names = format_names(_components_of(models, worker))
        problem = f"worker {worker} has {count} ranks, and none of its components can use more than one: {names}"
        raise LoadError(f"{problem}\n  fix: remove `ranks` from [workers.{worker}]")
    return count


def components_with_ranks(models: Mapping[str, PlannedModel], worker: str) -> dict[str, Component]:
    """Components of a worker that its ranks compute together, as "model.component"; rank 0 computes the others."""
    components = _components_of(models, worker).items()
    return {name: component for name, component in components if component.runs_on_ranks}


def _components_of(models: Mapping[str, PlannedModel], worker: str) -> dict[str, Component]:
    return {
        f"{model}.{name}": planned.model.components()[name]
        for model, planned in models.items()
        for name in planned.components_at(worker)
    }


def find_nondeterminism(models: Mapping[str, PlannedModel], worker: str) -> dict[str, str]:
    """Why results of a loaded component can depend on the batch, for each component where they can."""
    reasons = {name: component.nondeterminism() for name, component in _components_of(models, worker).items()}
    return {name: reason for name, reason in reasons.items() if reason}


def load_components(
    models: Mapping[str, PlannedModel], settings: WorkerConfig, peer: Peer, rank: Rank | None = None
) -> dict[str, str]:
    """Load the components that the placement assigns to this worker, or to a rank of it; returns their devices."""
    number = 0 if rank is None else rank.number
    components = (components_with_ranks if number else _components_of)(models, peer.worker)
    for planned in models.values():
        for name in planned.components_at(peer.worker):
            planned.apply_settings(name)
    devices = {planned.devices[peer.worker] for planned in models.values() if peer.worker in planned.devices}
    device_name, device = _open_device(peer.worker, devices, settings.cuda_device, number) if devices else (CPU, None)
    loaded: dict[str, str] = {}
    shares = {planned.memory_shares[peer.worker] for planned in models.values() if peer.worker in planned.memory_shares}
    memory = None if device is None else _open_memory(peer.worker, device, shares, settings, rank)
    progress = LoadingProgress(loading_progress_path(Path(settings.directory), peer), rank)
    for name, component in components.items():
        progress.write(len(loaded), name)
        component.threads = settings.options.threads
        if component.runs_on_ranks:
            component.rank = rank
        if expert_device := component.operator_settings.get("experts"):
            _start_experts(settings, name, component, expert_device)
        if device is not None and component.runs_on_device:
            component.device, component.memory = device, memory
        elif device is not None:  # on the CPU beside it, arguments come to the host
            component.device = _open_cpu()
        component.prepare()
        is_on_device = device is not None and component.device is device  # it can have found no library for the device
        loaded[name] = device_name if is_on_device else CPU
        if device is not None:
            log.info("%s is on %s", name, device if is_on_device else "the CPU, because it does not run on devices")
    if memory is not None:
        memory.allocate()
    progress.remove()
    return loaded


def prepare_twin(
    models: Mapping[str, PlannedModel], twin: TwinConfig, names: Callable[[str, PlannedModel], Iterable[str]]
) -> tuple[Executor, dict[str, str]]:
    """Prepare components of a twin, of each model those that `names` returns. Returns their executor and devices."""
    from mstar.engine.twin.op_times import OpTimes
    from mstar.engine.twin.twin_executor import TwinComponent, TwinExecutor  # imports torch
    from mstar.plan.profile import ModelProfile

    sizes = TwinSizes(twin.output_tokens, twin.kv_tokens, twin.sizes)
    prepared: dict[Component, TwinComponent] = {}
    devices: dict[str, str] = {}
    for model, planned in models.items():
        profile = None
        if model in twin.profiles:
            profile = msgspec.json.decode(twin.profiles[model], type=ModelProfile)  # the command has checked it
        times = OpTimes.from_profile(profile, twin.device, twin.op_seconds, twin.time_scale)
        for name in names(model, planned):
            component = planned.model.components()[name]
            prepared[component] = TwinComponent.prepare(component, sizes, times, profile)
            devices[f"{model}.{name}"] = TWIN
    log.warning("this worker is a twin: it loads no weights, and the outputs of its ops are synthetic")
    return TwinExecutor(prepared), devices


def _start_experts(settings: WorkerConfig, name: str, component: Any, device: str) -> None:
    """Start the process with the experts of a component, which loads while the component does."""
    from mstar.worker.experts.remote_process import RemoteExpertProcess

    if component.rank is not None:
        problem = f"{name} has ranks and a process with experts"
        raise LoadError(f"{problem}, which do not work together\n  fix: remove `ranks` or `experts` from the placement")
    if component.operator_settings.get("engine"):
        problem = f"the experts of {name} are computed by its engine"
        raise LoadError(f"{problem}\n  fix: remove `engine` or `experts` from the placement")
    component.expert_process = RemoteExpertProcess(settings, name, device)


def _open_device(worker: str, devices: set[str], cuda_device: str, rank: int = 0) -> tuple[str, object]:
    """The device of a worker, with its name for operators. `cuda_device` names the GPUs that it sees, one per rank."""
    from mstar.nn.devices import open_device  # imports torch

    if len(devices) > 1:
        problem = f"the placements give worker {worker} the devices {format_names(sorted(devices))}"
        raise LoadError(f"{problem}\n  fix: write the same device in each of them")
    (name,) = devices
    if not cuda_device:
        return name, open_device(name)
    try:
        return cuda_device, open_device(f"cuda:{rank}")
    except LoadError as error:
        raise LoadError(f"worker {worker} sees {cuda_device} only, as its cuda:{rank}: {error}") from error


def _open_cpu() -> object:
    from mstar.nn.devices import open_device  # imports torch

    return open_device(CPU)


def _open_memory(
    worker: str, device: Any, shares: set[float], settings: WorkerConfig, rank: Rank | None = None
) -> DeviceMemory | None:
    from mstar.nn.device_memory import open_memory  # imports torch

    if len(shares) > 1:
        problem = (
            f"the placements give worker {worker} the shares {format_names(map(str, sorted(shares)))} of its device"
        )
        raise LoadError(f"{problem}\n  fix: write the same `memory` in each of them")
    memory = open_memory(
        device,
        next(iter(shares), None),
        max_batched_tokens=settings.options.max_batched_tokens,
        max_batch_size=settings.options.max_batch_size,
    )
    if memory is not None and rank is not None:
        from mstar.nn.ranks import least  # imports torch

        memory.agree = least
    return memory
