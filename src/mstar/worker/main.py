"""Entry point of a worker process: loads its components, registers, and serves until its actor loop stops."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from mstar import failpoints, process_tuning
from mstar.config import WorkerConfig
from mstar.engine.engine import Engine
from mstar.engine.executor import Executor
from mstar.errors import DeviceFailed
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
from mstar.worker.loading import (
    components_with_ranks,
    find_nondeterminism,
    load_components,
    prepare_twin,
    rank_count,
)
from mstar.worker.ranks.leader import LeaderExecutor
from mstar.worker.ranks.rank_processes import RankProcesses
from mstar.worker.scheduling.scheduler import BatchLimits

log = logging.getLogger("mstar.worker")

DEVICE_FAILED_STATUS = 70
"""Exit status of a worker whose device failed (EX_SOFTWARE of sysexits)."""
CHECK_INTERVAL = 64
"""Batches from one whose results are checked against the annotation of the op to the next."""


def main(settings: WorkerConfig) -> None:
    """Run a worker until its actor loop stops."""
    with ExitStack() as stack:
        _run(settings, stack)


def _run(settings: WorkerConfig, stack: ExitStack) -> None:
    if settings.incarnation == 0:
        failpoints.arm(settings.options.failpoints)
    planned_models = load_planned_models(settings.models, settings.placements)
    peer = Peer(settings.name, settings.incarnation)
    ranks = rank_count(planned_models, peer.worker)
    group = RankProcesses(settings, ranks) if ranks > 1 else None  # the other ranks load at the same time
    if settings.options.twin is not None:
        executor, components = prepare_twin(
            planned_models, settings.options.twin, lambda _, planned: planned.components_at(peer.worker)
        )
    else:
        executor, components = _load(planned_models, settings, group, stack)
    process_tuning.freeze_heap()
    address_book = AddressBook.from_config(settings)
    codec = ArenaCodec(endpoint=HostEndpoint(settings.ip, settings.key, address_book.is_local))
    if "torch" in sys.modules:  # components that export large states have imported it
        from mstar.nn.staging import use_shared_exports

        use_shared_exports(codec.exports.allocate)
    actor_loop = ActorLoop(address_book, settings.key, codec)
    conductor = Peer(settings.conductor, settings.peers[settings.conductor])
    unbatched_keys = {name: planned.unbatched_keys() for name, planned in planned_models.items()}
    limits = BatchLimits(
        settings.options.max_batch_size, settings.options.max_undelivered_outputs, unbatched_keys=unbatched_keys
    )
    plans = {name: planned.plans for name, planned in planned_models.items()}
    core = WorkerCore(peer, conductor, plans, tuple(components), limits)
    core.weights_version, core.devices, core.nondeterminism = (
        settings.weights_version,
        components,
        find_nondeterminism(planned_models, peer.worker),
    )

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
    engine = Engine(
        max_batched_tokens=settings.options.max_batched_tokens, check_interval=CHECK_INTERVAL, executor=executor
    )
    black_box = BlackBox.create(Path(settings.black_box))
    engine_thread = EngineThread(
        models, engine, actor.report, threading.Lock(), black_box, _end_process if group is None else group.end_process
    )
    engine_thread.loaded = frozenset(components)
    launcher = Peer("launcher", settings.peers["launcher"])
    actor_loop.call_soon(lambda: actor_loop.announce_address(peer, launcher))
    actor.attach_engine(engine_thread, launcher)
    actor_loop.run()


def _load(
    models: Mapping[str, PlannedModel], settings: WorkerConfig, group: RankProcesses | None, stack: ExitStack
) -> tuple[Executor, dict[str, str]]:
    """Load the components of this worker; returns what runs their ops, and their devices."""
    peer = Peer(settings.name, settings.incarnation)
    if group is None:
        return Executor(), load_components(models, settings, peer)
    devices = load_components(models, settings, peer, stack.enter_context(group.join()))
    return LeaderExecutor(components_with_ranks(models, peer.worker), group.channels), devices


def _end_process(error: DeviceFailed) -> None:
    """End this worker. The launcher starts another one, and its requests are replayed there."""
    log.critical("this worker ends: %s", error, exc_info=error)
    os._exit(DEVICE_FAILED_STATUS)  # other threads may wait for the device
