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
from mstar.conductor.core import ConductorCore
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.model import ConductorModel
from mstar.config import RuntimeConfig
from mstar.engine.engine import Engine
from mstar.plan.planned_model import PlannedModel
from mstar.wire import messages as m
from mstar.wire.transport.actor_loop import Actor, ActorLoop
from mstar.worker.actor import WorkerActor
from mstar.worker.core import WorkerCore
from mstar.worker.engine_thread import EngineThread
from mstar.worker.scheduling.policy import SchedulingPolicy
from mstar.worker.scheduling.scheduler import BatchLimits as WorkerLimits

LAUNCHER = m.Peer("launcher", 0)


class InProcessLauncher:
    """Serves models in this process. It is started once. `order` is another rule by which workers choose batches."""

    conductor = m.Peer("conductor", 0)

    def __init__(
        self,
        planned_models: Mapping[str, PlannedModel],
        *,
        options: RuntimeConfig | None = None,
        policy: SchedulingPolicy | None = None,
    ) -> None:
        self._policy = policy
        self.actor_loop = ActorLoop(None, os.urandom(32), None)
        self._planned_models = dict(planned_models)
        self._options = options or RuntimeConfig()
        self._thread = threading.Thread(target=self.actor_loop.run, name="mstar-actor-loop", daemon=True)
        self._engine_threads: list[EngineThread] = []
        self._engine_lock = threading.Lock()
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
        served = {name: ConductorModel.from_plans(one.model, one.plans) for name, one in self._planned_models.items()}
        # Nobody here can be ended and started again. Whoever is silent has no more than been held up, as has everybody.
        limits = ConductorLimits(
            max_running_requests=options.max_running_requests,
            max_queued_requests=options.max_queued_requests,
            heartbeat_timeout_s=inf,
            has_fixed_workers=True,
        )
        core = ConductorCore(self.conductor, LAUNCHER, served, limits)
        self.actor_loop.add(_LauncherActor(self._ready, self._drained))
        self.actor_loop.add(ConductorActor(self.actor_loop, core, dict))
        for one in self._planned_models.values():
            for component in one.model.components().values():
                component.threads = options.threads
                component.prepare()
        self._thread.start()
        for worker in dict.fromkeys(name for one in self._planned_models.values() for name in one.plans.workers):
            self._add_worker(worker)
        self._ready.wait()

    def _add_worker(self, name: str) -> None:
        here = [f"{model}.{part}" for model, one in self._planned_models.items() for part in one.components_at(name)]
        plans = {model: one.plans for model, one in self._planned_models.items()}
        single = {model: one.unbatched_keys() for model, one in self._planned_models.items()}
        limits = WorkerLimits(self._options.max_batch_size, self._options.max_undelivered_outputs, self._policy, single)
        core = WorkerCore(m.Peer(name, 0), self.conductor, plans, tuple(here), limits)
        actor = WorkerActor(self.actor_loop, core, dict)
        models = {model: one.model for model, one in self._planned_models.items()}
        room = EngineThread(
            models, Engine(max_batched_tokens=self._options.max_batched_tokens), actor.report, self._engine_lock
        )
        self._engine_threads.append(room)
        self.actor_loop.call_soon(lambda: self.actor_loop.add(actor))
        actor.attach_engine(room, LAUNCHER)

    @property
    def conductors(self) -> dict[str, m.Peer]:
        """The conductor of each model."""
        return dict.fromkeys(self._planned_models, self.conductor)

    def peers(self) -> tuple[m.Peer, ...]:
        """Conductor and workers."""
        workers = dict.fromkeys(name for one in self._planned_models.values() for name in one.plans.workers)
        return (self.conductor, *(m.Peer(name, 0) for name in workers))

    def add_frontend(self, frontend: Actor) -> None:
        """Host a front end."""
        self.actor_loop.call_soon(lambda: self.actor_loop.add(frontend))

    def stop(self, drain_timeout_s: float = 30.0) -> None:
        """Let requests end for so long, then end everything."""
        self.actor_loop.call_soon(lambda: self.actor_loop.send(LAUNCHER, self.conductor, m.Drain()))
        self._drained.wait(drain_timeout_s)
        for room in self._engine_threads:
            room.stop()
        self.actor_loop.stop()
        self._thread.join()


class _LauncherActor:
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
