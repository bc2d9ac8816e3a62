"""Everything in one process: one conductor, workers and front ends on one node, for a laptop and for a first try.

The cores are the same as everywhere, and so is what they say to each other; only nobody is there to start anything
again. Each worker has an engine thread of its own; they share the components, and take turns. `Local` is for those who
want to survive a crash.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from math import inf
from typing import Self

from mstar.conductor.actor import ConductorActor
from mstar.conductor.core import ConductorCore, Limits, Served
from mstar.config import Options
from mstar.engine.engine import Engine
from mstar.plan.deployment import Deployed
from mstar.wire import messages as m
from mstar.wire.node import Actor, Node
from mstar.worker.actor import WorkerActor
from mstar.worker.batches import Limits as WorkerLimits
from mstar.worker.core import WorkerCore
from mstar.worker.engine_room import EngineRoom
from mstar.worker.order import Order

LAUNCHER = m.Peer("launcher", 0)


class Together:
    """Serves models in this process. It is started once. `order` is another rule by which workers choose batches."""

    conductor = m.Peer("conductor", 0)

    def __init__(
        self, deployed: Mapping[str, Deployed], *, options: Options | None = None, order: Order | None = None
    ) -> None:
        self._order = order
        self.node = Node(None, os.urandom(32), None)
        self._deployed = dict(deployed)
        self._options = options or Options()
        self._thread = threading.Thread(target=self.node.run, name="mstar-node", daemon=True)
        self._rooms: list[EngineRoom] = []
        self._turn = threading.Lock()
        self._ready = threading.Event()
        self._drained = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Load all components and start; return when requests can come."""
        options = self._options
        served = {name: Served.of(one.model, one.plans) for name, one in self._deployed.items()}
        # Nobody here can be ended and started again. Whoever is silent has no more than been held up, as has everybody.
        limits = Limits(live=options.max_live, queue=options.queue_bound, silence=inf, is_fixed=True)
        core = ConductorCore(self.conductor, LAUNCHER, served, limits)
        self.node.add(_Launcher(self._ready, self._drained))
        self.node.add(ConductorActor(self.node, core, dict))
        for one in self._deployed.values():
            for component in one.model.components().values():
                component.threads = options.threads
                component.prepare()
        self._thread.start()
        for worker in dict.fromkeys(name for one in self._deployed.values() for name in one.plans.workers):
            self._add_worker(worker)
        self._ready.wait()

    def _add_worker(self, name: str) -> None:
        here = [f"{model}.{part}" for model, one in self._deployed.items() for part in one.components_at(name)]
        plans = {model: one.plans for model, one in self._deployed.items()}
        single = {model: one.alone() for model, one in self._deployed.items()}
        limits = WorkerLimits(self._options.max_batch, self._options.window, self._order, single)
        core = WorkerCore(m.Peer(name, 0), self.conductor, plans, tuple(here), limits)
        actor = WorkerActor(self.node, core, dict)
        models = {model: one.model for model, one in self._deployed.items()}
        room = EngineRoom(models, Engine(token_budget=self._options.token_budget), actor.report, self._turn)
        self._rooms.append(room)
        self.node.call(lambda: self.node.add(actor))
        actor.drive(room, LAUNCHER)

    @property
    def conductors(self) -> dict[str, m.Peer]:
        """The conductor of each model."""
        return dict.fromkeys(self._deployed, self.conductor)

    def peers(self) -> tuple[m.Peer, ...]:
        """Conductor and workers."""
        workers = dict.fromkeys(name for one in self._deployed.values() for name in one.plans.workers)
        return (self.conductor, *(m.Peer(name, 0) for name in workers))

    def add(self, front: Actor) -> None:
        """Host a front end."""
        self.node.call(lambda: self.node.add(front))

    def stop(self, grace_s: float = 30.0) -> None:
        """Let requests end for so long, then end everything."""
        self.node.call(lambda: self.node.send(LAUNCHER, self.conductor, m.Drain()))
        self._drained.wait(grace_s)
        for room in self._rooms:
            room.stop()
        self.node.stop()
        self._thread.join()


class _Launcher:
    """Hears when everything is there, and when everything is done."""

    peer = LAUNCHER

    def __init__(self, ready: threading.Event, drained: threading.Event) -> None:
        self._ready = ready
        self._drained = drained

    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:  # noqa: ARG002 - as every actor
        """Take a message."""
        if isinstance(message, m.Ready):
            self._ready.set()
        elif isinstance(message, m.Drained):
            self._drained.set()

    def tick(self, now: float) -> None:
        """Nothing depends on time here."""
