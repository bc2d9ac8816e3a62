"""Entry point of a worker process: loads its components, registers, and serves until its actor loop stops."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar import failpoints, process_tuning
from mstar.config import WorkerConfig
from mstar.engine.engine import Engine
from mstar.errors import DeviceFailed, LoadError, format_names
from mstar.plan.planned_model import PlannedModel, load_planned_models
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.wire.messages import Peer
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook
from mstar.worker.actor import WorkerActor
from mstar.worker.black_box import BlackBox
from mstar.worker.core import WorkerCore
from mstar.worker.engine_thread import EngineThread
from mstar.worker.scheduling.scheduler import BatchLimits

if TYPE_CHECKING:
    from mstar.nn.device_memory import DeviceMemory

log = logging.getLogger("mstar.worker")

CPU = "cpu"
"""Device of a component that no other device was set for."""
DEVICE_FAILED_STATUS = 70
"""Exit status of a worker whose device failed (EX_SOFTWARE of sysexits)."""
CHECK_INTERVAL = 64
"""Batches from one whose results are checked against the annotation of the op to the next."""


def main(settings: WorkerConfig) -> None:
    """Run a worker until its actor loop stops."""
    if settings.incarnation == 0:
        failpoints.arm(settings.options.failpoints)
    planned_models = load_planned_models(settings.models, settings.placements)
    peer = Peer(settings.name, settings.incarnation)
    components = _load_components(planned_models, settings, peer)
    process_tuning.freeze_heap()
    address_book = AddressBook.from_config(settings)
    codec = ArenaCodec(endpoint=HostEndpoint(settings.ip, settings.key, address_book.is_local))
    actor_loop = ActorLoop(address_book, settings.key, codec)
    conductor = Peer(settings.conductor, settings.peers[settings.conductor])
    unbatched_keys = {name: planned.unbatched_keys() for name, planned in planned_models.items()}
    limits = BatchLimits(
        settings.options.max_batch_size, settings.options.max_undelivered_outputs, unbatched_keys=unbatched_keys
    )
    plans = {name: planned.plans for name, planned in planned_models.items()}
    core = WorkerCore(peer, conductor, plans, tuple(components), limits)
    core.weights_version, core.devices = settings.weights_version, components

    op_cpu_us = 0

    def process_stats() -> dict[str, int]:
        nonlocal op_cpu_us
        # A thread of a library can end, and its CPU time is lost; a counter must not decrease.
        measured_us = round(engine_thread.op_cpu_s * 1e6) + process_tuning.native_threads_cpu_us()
        op_cpu_us = max(op_cpu_us, measured_us)
        return process_tuning.process_usage() | codec.stats() | {"op_cpu_us": op_cpu_us}

    actor = WorkerActor(actor_loop, core, process_stats)
    actor_loop.add(actor)
    models = {name: planned.model for name, planned in planned_models.items()}
    engine = Engine(max_batched_tokens=settings.options.max_batched_tokens, check_interval=CHECK_INTERVAL)
    black_box = BlackBox.create(Path(settings.black_box))
    engine_thread = EngineThread(models, engine, actor.report, threading.Lock(), black_box, _end_process)
    engine_thread.loaded = frozenset(components)
    launcher = Peer("launcher", settings.peers["launcher"])
    actor_loop.call_soon(lambda: actor_loop.announce_address(peer, launcher))
    actor.attach_engine(engine_thread, launcher)
    actor_loop.run()


def _end_process(error: DeviceFailed) -> None:
    """End this worker. The launcher starts another one, and its requests are replayed there."""
    log.critical("this worker ends: %s", error, exc_info=error)
    os._exit(DEVICE_FAILED_STATUS)  # other threads may wait for the device


def loading_progress_path(directory: Path, peer: Peer) -> Path:
    """File in which a worker reports its loading progress: components loaded, and the one it loads."""
    return directory / f"{peer}.loading"


class LoadingProgress:
    """Writer of the progress file. It is for display only: without space for it, loading continues."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_writable = True

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
        with suppress(OSError):
            self._path.unlink()


def _load_components(models: Mapping[str, PlannedModel], settings: WorkerConfig, peer: Peer) -> dict[str, str]:
    """Load the components that the placement assigns to this worker; returns the device of each."""
    components = {
        f"{model}.{name}": planned.model.components()[name]
        for model, planned in models.items()
        for name in planned.components_at(peer.worker)
    }
    for planned in models.values():
        for name in planned.components_at(peer.worker):
            planned.apply_settings(name)
    devices = {planned.devices[peer.worker] for planned in models.values() if peer.worker in planned.devices}
    device_name, device = _open_device(peer.worker, devices, settings.cuda_device) if devices else (CPU, None)
    loaded: dict[str, str] = {}
    shares = {planned.memory_shares[peer.worker] for planned in models.values() if peer.worker in planned.memory_shares}
    memory = None if device is None else _open_memory(peer.worker, device, shares, settings)
    progress = LoadingProgress(loading_progress_path(Path(settings.directory), peer))
    for name, component in components.items():
        progress.write(len(loaded), name)
        component.threads = settings.options.threads
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


def _open_device(worker: str, devices: set[str], cuda_device: str) -> tuple[str, object]:
    """The device of a worker, with its name for operators. `cuda_device` is that of the only GPU it sees, if any."""
    from mstar.nn.devices import open_device  # imports torch

    if len(devices) > 1:
        problem = f"the placements give worker {worker} the devices {format_names(sorted(devices))}"
        raise LoadError(f"{problem}\n  fix: write the same device in each of them")
    (name,) = devices
    if not cuda_device:
        return name, open_device(name)
    try:
        return cuda_device, open_device("cuda:0")
    except LoadError as error:
        raise LoadError(f"worker {worker} sees {cuda_device} only, as its cuda:0: {error}") from error


def _open_cpu() -> object:
    from mstar.nn.devices import open_device  # imports torch

    return open_device(CPU)


def _open_memory(worker: str, device: Any, shares: set[float], settings: WorkerConfig) -> DeviceMemory | None:
    from mstar.nn.device_memory import open_memory  # imports torch

    if len(shares) > 1:
        problem = (
            f"the placements give worker {worker} the shares {format_names(map(str, sorted(shares)))} of its device"
        )
        raise LoadError(f"{problem}\n  fix: write the same `memory` in each of them")
    return open_memory(
        device,
        next(iter(shares), None),
        max_batched_tokens=settings.options.max_batched_tokens,
        max_batch_size=settings.options.max_batch_size,
    )
