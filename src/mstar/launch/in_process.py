"""In-process launcher: one conductor, the workers and front ends in one process, for laptops and tests.

Cores and messages are the same as in a distributed deployment, but nothing is restarted after a crash. Each worker has
its own engine thread; the threads share the components and take turns. For crash isolation use `LocalLauncher`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from math import inf
from typing import Self

from mstar.conductor.actor import ConductorActor
from mstar.conductor.core import ConductorCore
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.model import ConductorModel
from mstar.config import RuntimeConfig, disable_telemetry
from mstar.engine.engine import Engine
from mstar.engine.executor import Executor
from mstar.plan.planned_model import PlannedModel
from mstar.wire import messages as m
from mstar.wire.transport.actor_loop import SLOW_TICKS, Actor, ActorLoop
from mstar.worker.actor import WorkerActor
from mstar.worker.core import WorkerCore
from mstar.worker.engine_thread import EngineThread
from mstar.worker.loading import prepare_twin
from mstar.worker.scheduling.policy import SchedulingPolicy
from mstar.worker.scheduling.scheduler import BatchLimits

LAUNCHER = m.Peer("launcher", 0)


class InProcessLauncher:
    """Serves models in this process. Can be started once. `policy` overrides the scheduling policy of the workers."""

    conductor = m.Peer("conductor", 0)

    def __init__(
        self,
        planned_models: Mapping[str, PlannedModel],
        *,
        options: RuntimeConfig | None = None,
        policy: SchedulingPolicy | None = None,
    ) -> None:
        disable_telemetry()
        self._policy = policy
        self.actor_loop = ActorLoop(None, os.urandom(32), None)
        self._planned_models = dict(planned_models)
        self._options = options or RuntimeConfig()
        self._thread = threading.Thread(target=self.actor_loop.run, name="mstar-actor-loop", daemon=True)
        self._engine_threads: list[EngineThread] = []
        self._engine_lock = threading.Lock()
        self._executor: Executor | None = None
        self._ready = threading.Event()
        self._drained = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Load all components and start. Returns when the deployment is ready. `progress` gets a line per component."""
        options = self._options
        models = {
            name: ConductorModel.from_plans(each.model, each.plans) for name, each in self._planned_models.items()
        }
        # No heartbeat timeout: workers cannot be restarted here, and one that is silent is only delayed.
        limits = ConductorLimits(
            max_running_requests=options.max_running_requests,
            max_queued_requests=options.max_queued_requests,
            heartbeat_timeout_s=inf,
            has_fixed_workers=True,
        )
        for planned in self._planned_models.values():
            for name in planned.model.components():
                planned.apply_settings(name)
        core = ConductorCore(self.conductor, LAUNCHER, models, limits)
        self.actor_loop.add(_LauncherActor(self._ready, self._drained))
        self.actor_loop.add(ConductorActor(self.actor_loop, core, dict))
        self._load_components(progress)
        self._thread.start()
        for worker in dict.fromkeys(
            name for planned in self._planned_models.values() for name in planned.plans.workers
        ):
            self._add_worker(worker)
        self._ready.wait()

    def _load_components(self, progress: Callable[[str], None]) -> None:
        if self._options.twin is not None:
            self._executor, _ = prepare_twin(
                self._planned_models, self._options.twin, lambda _, planned: planned.model.components()
            )
            return
        components = [
            component for planned in self._planned_models.values() for component in planned.model.components().values()
        ]
        for number, component in enumerate(components, 1):
            progress(f"loading {component.name} ({number} of {len(components)})")
            component.threads = self._options.threads
            component.prepare()

    def _add_worker(self, name: str) -> None:
        components = [
            f"{model}.{component}"
            for model, planned in self._planned_models.items()
            for component in planned.components_at(name)
        ]
        plans = {model: planned.plans for model, planned in self._planned_models.items()}
        unbatched = {model: planned.unbatched_keys() for model, planned in self._planned_models.items()}
        limits = BatchLimits(
            self._options.max_batch_size, self._options.max_undelivered_outputs, self._policy, unbatched
        )
        core = WorkerCore(m.Peer(name, 0), self.conductor, plans, tuple(components), limits)
        actor = WorkerActor(self.actor_loop, core, dict)
        models = {model: planned.model for model, planned in self._planned_models.items()}
        engine = Engine(max_batched_tokens=self._options.max_batched_tokens, executor=self._executor)
        engine_thread = EngineThread(models, engine, actor.report, self._engine_lock)
        self._engine_threads.append(engine_thread)
        self.actor_loop.call_soon(lambda: self.actor_loop.add(actor))
        actor.attach_engine(engine_thread, LAUNCHER)

    @property
    def conductors(self) -> dict[str, m.Peer]:
        """Conductor of each model."""
        return dict.fromkeys(self._planned_models, self.conductor)

    def peers(self) -> tuple[m.Peer, ...]:
        """The conductor and all workers."""
        workers = dict.fromkeys(name for planned in self._planned_models.values() for name in planned.plans.workers)
        return (self.conductor, *(m.Peer(name, 0) for name in workers))

    def add_frontend(self, frontend: Actor) -> None:
        """Host a front end on the actor loop."""
        self.actor_loop.call_soon(lambda: self.actor_loop.add(frontend))

    def stop(self, drain_timeout_s: float = 30.0) -> None:
        """Graceful shutdown: wait up to `drain_timeout_s` for running requests, then stop everything."""
        self.actor_loop.call_soon(lambda: self.actor_loop.send(LAUNCHER, self.conductor, m.Drain()))
        self._drained.wait(drain_timeout_s)
        for engine_thread in self._engine_threads:
            engine_thread.stop()
        self.actor_loop.stop()
        self._thread.join()


class _LauncherActor:
    """Receives Ready and Drained from the conductor."""

    peer = LAUNCHER
    tick_interval = SLOW_TICKS

    def __init__(self, ready: threading.Event, drained: threading.Event) -> None:
        self._ready = ready
        self._drained = drained

    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:  # noqa: ARG002 - Actor interface
        """Handle a message."""
        if isinstance(message, m.Ready):
            self._ready.set()
        elif isinstance(message, m.Drained):
            self._drained.set()

    def tick(self, now: float) -> None:
        """Unused."""
