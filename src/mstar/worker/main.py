"""A worker as a process: it loads its components, says that it is there, and serves until it is told to stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from mstar import failpoints, process_tuning
from mstar.config import WorkerConfig
from mstar.engine.engine import Engine
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


def main(settings: WorkerConfig) -> None:
    """Be a worker until the node stops."""
    if settings.incarnation == 0:
        failpoints.arm(settings.options.failpoints)
    deployed = load_planned_models(settings.models, settings.placements)
    me = Peer(settings.name, settings.incarnation)
    here = _load_components(deployed, settings, loading_progress_path(Path(settings.directory), me))
    process_tuning.freeze_heap()
    whereabouts = AddressBook.from_config(settings)
    codec = ArenaCodec(endpoint=HostEndpoint(settings.ip, settings.key, whereabouts.is_local))
    node = ActorLoop(whereabouts, settings.key, codec)
    conductor = Peer(settings.conductor, settings.peers[settings.conductor])
    single = {name: one.unbatched_keys() for name, one in deployed.items()}
    limits = BatchLimits(
        settings.options.max_batch_size, settings.options.max_undelivered_outputs, unbatched_keys=single
    )
    core = WorkerCore(me, conductor, {name: one.plans for name, one in deployed.items()}, tuple(here), limits)
    core.weights_version = settings.weights_version

    def stock() -> dict[str, int]:
        return {"fds": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()} | codec.stats()

    actor = WorkerActor(node, core, stock)
    node.add(actor)
    models = {name: one.model for name, one in deployed.items()}
    engine = Engine(max_batched_tokens=settings.options.max_batched_tokens)
    black_box = BlackBox.create(Path(settings.black_box))
    room = EngineThread(models, engine, actor.report, threading.Lock(), black_box)
    launcher = Peer("launcher", settings.peers["launcher"])
    node.call_soon(lambda: node.announce_address(me, launcher))
    actor.attach_engine(room, launcher)
    node.run()


def loading_progress_path(directory: Path, peer: Peer) -> Path:
    """The file in which a worker says which component it loads, and how many it has loaded."""
    return directory / f"{peer}.loading"


def _load_components(models: Mapping[str, PlannedModel], settings: WorkerConfig, progress_path: Path) -> list[str]:
    """Load the components that run here; their names."""
    parts = {
        f"{name}.{part}": one.model.components()[part]
        for name, one in models.items()
        for part in one.components_at(settings.name)
    }
    for done, (name, component) in enumerate(parts.items()):
        progress_path.write_text(f"{done} {name}")
        component.threads = settings.options.threads
        component.prepare()
    progress_path.unlink(missing_ok=True)
    return list(parts)
