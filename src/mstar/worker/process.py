"""A worker as a process: it loads its components, says that it is there, and serves until it is told to stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from mstar import failpoints, interpreter
from mstar.config import WorkerSettings
from mstar.engine.engine import Engine
from mstar.plan.deployment import Deployed, deploy
from mstar.transfer.afar import Reach
from mstar.transfer.codec import ArenaCodec
from mstar.wire.messages import Peer
from mstar.wire.node import Node
from mstar.wire.whereabouts import Whereabouts
from mstar.worker.actor import WorkerActor
from mstar.worker.batches import Limits
from mstar.worker.blackbox import BlackBox
from mstar.worker.core import WorkerCore
from mstar.worker.engine_room import EngineRoom


def main(settings: WorkerSettings) -> None:
    """Be a worker until the node stops."""
    if settings.incarnation == 0:
        failpoints.arm(settings.options.failpoints)
    deployed = deploy(settings.models, settings.placements)
    me = Peer(settings.name, settings.incarnation)
    here = _prepare(deployed, settings, loading_file(Path(settings.directory), me))
    interpreter.settle()
    whereabouts = Whereabouts.of(settings)
    codec = ArenaCodec(reach=Reach(settings.ip, settings.key, whereabouts.is_here))
    node = Node(whereabouts, settings.key, codec)
    conductor = Peer(settings.conductor, settings.peers[settings.conductor])
    single = {name: one.alone() for name, one in deployed.items()}
    limits = Limits(settings.options.max_batch, settings.options.window, alone=single)
    core = WorkerCore(me, conductor, {name: one.plans for name, one in deployed.items()}, tuple(here), limits)
    core.edition = settings.edition

    def stock() -> dict[str, int]:
        return {"fds": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()} | codec.stock()

    actor = WorkerActor(node, core, stock)
    node.add(actor)
    models = {name: one.model for name, one in deployed.items()}
    engine = Engine(token_budget=settings.options.token_budget)
    black_box = BlackBox.create(Path(settings.black_box))
    room = EngineRoom(models, engine, actor.report, threading.Lock(), black_box)
    launcher = Peer("launcher", settings.peers["launcher"])
    node.call(lambda: node.present(me, launcher))
    actor.drive(room, launcher)
    node.run()


def loading_file(directory: Path, peer: Peer) -> Path:
    """The file in which a worker says which component it loads, and how many it has loaded."""
    return directory / f"{peer}.loading"


def _prepare(deployed: Mapping[str, Deployed], settings: WorkerSettings, told: Path) -> list[str]:
    """Load the components that run here; their names."""
    parts = {
        f"{name}.{part}": one.model.components()[part]
        for name, one in deployed.items()
        for part in one.components_at(settings.name)
    }
    for done, (name, component) in enumerate(parts.items()):
        told.write_text(f"{done} {name}")
        component.threads = settings.options.threads
        component.prepare()
    told.unlink(missing_ok=True)
    return list(parts)
