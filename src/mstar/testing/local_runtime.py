"""LocalRuntime: an in-process runtime that executes plans in a random order, reproducible from a seed.

It has workers, seats and messages like the real runtime, but no processes and no clock. Values cross between workers
only where the plan has a transfer, states are copied when they move, stream buffers can be as small as the plan allows,
and calls of different requests share batches at random. Its results stand for every schedule and placement; `parity`
compares them with the eager run. A call that fails ends its own request only.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mstar.engine.engine import Engine
from mstar.engine.executor import Executor
from mstar.engine.jobs import Job, JobDone, JobFailed
from mstar.errors import MstarError
from mstar.plan.compile import plan
from mstar.plan.placement import Placement
from mstar.plan.runtime.frame import Frame, ReadyInstruction, Run
from mstar.plan.runtime.messages import PartitionMessage
from mstar.plan.runtime.run import PartitionRun, complete
from mstar.plan.tables import Call, Plan, Plans
from mstar.walk.client_input import INTERRUPTED, ClientInput, InputLog, NextInput, received_emissions
from mstar.walk.emissions import KINDS
from mstar.walk.model import Model, Outcome, RouteRun, WalkCall
from mstar.walk.states import State


class StateHandle(State):
    """Reference of a route to a state inside the engine."""

    def __init__(self, engine: Engine, state: State) -> None:
        self.engine = engine
        self.state = state

    def fork(self) -> StateHandle:
        """A handle of a fork of the state."""
        return StateHandle(self.engine, self.engine.fork(self.state))


class DeadlockError(MstarError):
    """Requests are unfinished but nothing can run: a bug in the planner or in the checks of walks."""


@dataclass(eq=False)
class _WalkRun:
    """One walk of one request: a run per seat, and the messages in flight between seats."""

    call: WalkCall[Any, Any]
    plan: Plan
    runs: list[PartitionRun]
    channels: dict[tuple[int, int], deque[PartitionMessage]] = field(
        default_factory=dict[tuple[int, int], deque[PartitionMessage]]
    )

    def send_outbox(self, run: PartitionRun) -> None:
        """Queue the outgoing messages of a run. Order is kept per pair of seats only."""
        for message in run.outbox:
            self.channels.setdefault((run.program.seat, message.seat), deque()).append(message)
        run.outbox.clear()

    def deliver_remaining(self) -> None:
        """Deliver the messages in flight after the walk has finished; raise DeadlockError if anything is left over."""
        for (_, target), queue in self.channels.items():
            while queue:
                self.runs[target].deliver(queue.popleft())
        pending = [item for run in self.runs for item in (*run.pending(), *map(str, run.outbox))]
        if pending:
            raise DeadlockError(f"walk {self.plan.walk} finished with pending {pending}")

    def release(self) -> None:
        """Drop all values and states of the walk."""
        for run in self.runs:
            run.drop()

    @property
    def is_done(self) -> bool:
        """Whether every seat has finished."""
        return all(run.is_done for run in self.runs)


@dataclass(eq=False)
class _LocalRequest:
    """One request being served."""

    route: RouteRun
    outcome: Outcome
    inputs: InputLog
    walks: int = 0
    walk_run: _WalkRun | None = None
    interruption: ClientInput | None = None
    """The client input that interrupts the current walk."""


class LocalRuntime:
    """Serves requests to one model in this process."""

    def __init__(  # noqa: PLR0913 - keyword arguments
        self,
        model: Model,
        placement: Placement | None = None,
        *,
        seed: int = 0,
        min_stream_buffers: bool = False,
        max_batch_size: int = 8,
        max_batched_tokens: int | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.model = model
        self.engine = Engine(max_batched_tokens=max_batched_tokens, executor=executor)
        self.plans: Plans = plan(model.graphs(), placement)
        self.min_stream_buffers = min_stream_buffers
        self.max_batch_size = max_batch_size
        self.batches: list[tuple[str, int]] = []
        """Batches in order of execution: the op and the number of its calls."""
        self._random = random.Random(seed)
        self._components = model.components()
        for component in self._components.values():
            component.prepare_once()
        self._ops = {name: component.ops() for name, component in self._components.items()}
        self._ready: defaultdict[str, list[ReadyInstruction]] = defaultdict(list)
        self._partial_jobs: dict[tuple[Frame, int], Job] = {}
        """Jobs of chunked calls with chunks left to run."""

    # ---------------------------------------------------------------- the host interface of a run
    def new_state(self, component: str, kind: str) -> State:
        """Create an empty state of a component."""
        owner = self._components[component]
        return self.engine.new_state(owner, owner.state_kinds()[kind])

    def fork(self, state: State) -> State:
        """Copy a state."""
        return self.engine.fork(state)

    # ---------------------------------------------------------------- requests
    def run(self, request: Any, inputs: Sequence[ClientInput] = ()) -> Outcome:
        """Serve one request, with further client inputs while it runs."""
        return self.run_all([request], inputs)[0]

    def run_all(self, requests: Sequence[Any], inputs: Sequence[ClientInput] = ()) -> list[Outcome]:
        """Serve several requests concurrently. All of them get the same client inputs."""
        served = [self._admit(request, inputs) for request in requests]
        while active := [request for request in served if request.walk_run is not None]:
            self._step(active)
            for request in served:
                if request.walk_run is not None and request.walk_run.is_done:
                    self._advance(request, self._collect(request))
        return [request.outcome for request in served]

    def _admit(self, request: Any, inputs: Sequence[ClientInput]) -> _LocalRequest:
        engine = self.engine
        route = RouteRun(self.model, request, lambda owner, kind: StateHandle(engine, engine.new_state(owner, kind)))
        served = _LocalRequest(route, Outcome([]), InputLog(inputs))
        self._advance(served, None)
        return served

    def _advance(self, served: _LocalRequest, result: Any) -> None:
        """Return the result of its walk to a route and start the next walks, until one does not finish at once."""
        while (awaited := served.route.advance(result)) is not None:
            if isinstance(awaited, NextInput):
                served.outcome.answers.append(awaited.answer)
                result = served.inputs.consume()
                continue
            served.interruption = served.inputs.find_interruption(served.walks) if awaited.is_interruptible else None
            served.walks += 1
            served.walk_run = self._start(awaited)
            if not served.walk_run.is_done:
                return
            result = self._collect(served)
        served.walk_run = None
        served.outcome.result = served.route.result

    def _start(self, call: WalkCall[Any, Any]) -> _WalkRun:
        walk_plan = self.plans.walks[call.name]
        workers = [self._random.choice(worker_set.workers) for worker_set in walk_plan.worker_sets]
        runs = [
            PartitionRun(program, self, self._ready[workers[program.seat]], has_minimal_buffers=self.min_stream_buffers)
            for program in walk_plan.programs
        ]
        walk_run = _WalkRun(call, walk_plan, runs)
        arguments = [call.arguments[name] for name in walk_plan.input_names]
        for run in runs:
            # Each run gets a copy: only the states that the plan returns can reach the route.
            run.start([self.fork(value.state) if isinstance(value, StateHandle) else value for value in arguments])
            walk_run.send_outbox(run)
        return walk_run

    def _collect(self, served: _LocalRequest) -> Any:
        """Hand over the results of a finished walk: emissions to the client, states to their handles, values to the
        route."""
        walk_run = served.walk_run
        assert walk_run is not None
        walk_run.deliver_remaining()
        outputs: dict[int, Any] = {}
        handles: dict[int, StateHandle] = {}
        emissions = (pair for run in walk_run.runs for pair in run.emissions)
        emitted = [KINDS[table.kind](value, **dict(table.clock)) for table, value in emissions]
        if served.interruption is not None:  # the route's states are unchanged: runs have copies
            served.outcome.emissions.extend(received_emissions(emitted, served.outcome.emissions, served.interruption))
            return INTERRUPTED
        served.outcome.emissions.extend(emitted)
        for run in walk_run.runs:
            outputs |= run.outputs
            for index, state in run.states.items():
                handle = walk_run.call.arguments[walk_run.plan.input_names[index]]
                handle.state = state
                handles[id(state)] = handle
        values = [
            handles.get(id(value)) or StateHandle(self.engine, value) if isinstance(value, State) else value
            for _, value in sorted(outputs.items())
        ]
        return tuple(values) if walk_run.plan.gives_tuple else values[0] if values else None

    # ---------------------------------------------------------------- the schedule
    def _step(self, active: list[_LocalRequest]) -> None:
        """Take one random step: deliver a message or run a batch."""
        walk_runs = [request.walk_run for request in active if request.walk_run is not None]
        messages = [(walk_run, key) for walk_run in walk_runs for key, queue in walk_run.channels.items() if queue]
        workers = [worker for worker, calls in self._ready.items() if calls]
        if not messages and not workers:
            raise DeadlockError(f"nothing can run in walks {sorted({walk_run.call.name for walk_run in walk_runs})}")
        pick = self._random.randrange(len(messages) + len(workers))
        if pick < len(messages):
            walk_run, key = messages[pick]
            run = walk_run.runs[key[1]]
            run.deliver(walk_run.channels[key].popleft())
            walk_run.send_outbox(run)
        else:
            errors = self._run_batch(self._ready[workers[pick - len(messages)]])
            for request in active:
                self._after_batch(request, errors)

    def _run_batch(self, calls: list[ReadyInstruction]) -> dict[Run, Exception]:
        """Batch a random selection of the ready calls with one batch key; return the runs that failed."""
        key = _batch_key_index(self._random.choice(calls))
        same_key = [call for call in calls if _batch_key_index(call) == key]
        batch = self._random.sample(same_key, self._random.randint(1, min(len(same_key), self.max_batch_size)))
        name = self.plans.keys[key]
        self.batches.append((str(name), len(batch)))
        jobs = [
            self._partial_jobs.pop((frame, call.index), None) or Job(frame.arguments(call)) for frame, call in batch
        ]
        results = self.engine.run(self._components[name.component], self._ops[name.component][name.op], jobs)
        errors: dict[Run, Exception] = {}
        for ready, job, result in zip(batch, jobs, results, strict=True):
            if isinstance(result, JobFailed):
                errors[ready[0].run] = result.error
            elif isinstance(result, JobDone):
                calls.remove(ready)
                complete([ready], [result.values])
            else:
                self._partial_jobs[ready[0], ready[1].index] = job
        return errors

    def _after_batch(self, request: _LocalRequest, errors: dict[Run, Exception]) -> None:
        """Send the messages of a request, or end it if one of its calls has failed."""
        walk_run = request.walk_run
        assert walk_run is not None
        request.outcome.error = next((errors[run] for run in walk_run.runs if run in errors), None)
        if request.outcome.error is None:
            for run in walk_run.runs:
                walk_run.send_outbox(run)
            return
        for calls in self._ready.values():
            calls[:] = [call for call in calls if call[0].run not in walk_run.runs]
        self._partial_jobs = {key: job for key, job in self._partial_jobs.items() if key[0].run not in walk_run.runs}
        walk_run.release()
        request.route.close()
        request.walk_run = None


def _batch_key_index(ready: ReadyInstruction) -> int:
    call = ready[1].detail
    assert isinstance(call, Call)
    return call.key
