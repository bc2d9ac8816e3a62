"""LocalRuntime: executes plans in this process, by readiness, in a random order that a seed repeats.

It knows workers, seats and messages as the real runtime does, and nothing of processes or clocks. Values cross between
workers only where the plan says so, states are copied when they move, streams may be as tight as the plan allows, and
calls of different requests share batches at random. So whatever it gives is what any schedule and placement gives;
`parity` compares that with the eager run. A call that fails ends its request, and no other.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mstar.engine.engine import Engine
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
    """What a route holds for a state that lives elsewhere."""

    def __init__(self, engine: Engine, real: State) -> None:
        self.engine = engine
        self.state = real

    def fork(self) -> StateHandle:
        """A handle for a fork of the state."""
        return StateHandle(self.engine, self.engine.fork(self.state))


class DeadlockError(MstarError):
    """Requests are left, but nothing can run: a bug in the planner or in the rules that admit a walk."""


@dataclass(eq=False)
class _WalkRun:
    """One walk of one request: a run per seat, and the messages on their way between them."""

    call: WalkCall[Any, Any]
    plan: Plan
    runs: list[PartitionRun]
    channels: dict[tuple[int, int], deque[PartitionMessage]] = field(
        default_factory=dict[tuple[int, int], deque[PartitionMessage]]
    )

    def send_outbox(self, run: PartitionRun) -> None:
        """Put what a run has to say on its way; order is kept between two seats, not among more."""
        for message in run.outbox:
            self.channels.setdefault((run.program.seat, message.seat), deque()).append(message)
        run.outbox.clear()

    def deliver_remaining(self) -> None:
        """Deliver what is still on its way after the end; then nothing of the walk may be left anywhere."""
        for (_, target), queue in self.channels.items():
            while queue:
                self.runs[target].deliver(queue.popleft())
        left = [what for run in self.runs for what in (*run.pending(), *map(str, run.outbox))]
        if left:
            raise DeadlockError(f"walk {self.plan.walk} ended and left {left}")

    def release(self) -> None:
        """Let go of everything."""
        for run in self.runs:
            run.drop()

    @property
    def is_done(self) -> bool:
        """Whether every seat has come to its end."""
        return all(run.is_done for run in self.runs)


@dataclass(eq=False)
class _LocalRequest:
    """One request."""

    route: RouteRun
    outcome: Outcome
    inputs: InputLog
    walks: int = 0
    walk_run: _WalkRun | None = None
    interruption: ClientInput | None = None
    """What its client says while its walk runs, and so cuts it."""


class LocalRuntime:
    """Serves requests to one model in this process."""

    def __init__(
        self,
        model: Model,
        placement: Placement | None = None,
        *,
        seed: int = 0,
        min_stream_buffers: bool = False,
        max_batch_size: int = 8,
        max_batched_tokens: int | None = None,
    ) -> None:
        self.model = model
        self.engine = Engine(max_batched_tokens=max_batched_tokens)
        self.plans: Plans = plan(model.graphs(), placement)
        self.min_stream_buffers = min_stream_buffers
        self.max_batch_size = max_batch_size
        self.batches: list[tuple[str, int]] = []
        """What ran, in order: the op and how many calls of it were handed to the engine."""
        self._random = random.Random(seed)
        self._components = model.components()
        self._ops = {name: component.ops() for name, component in self._components.items()}
        self._ready: defaultdict[str, list[ReadyInstruction]] = defaultdict(list)
        self._partial_jobs: dict[tuple[Frame, int], Job] = {}
        """Calls of which some pieces have run."""

    # ---------------------------------------------------------------- what a run asks of its host
    def new_state(self, component: str, kind: str) -> State:
        """A fresh state of a component."""
        owner = self._components[component]
        return self.engine.new_state(owner, owner.state_kinds()[kind])

    def fork(self, state: State) -> State:
        """A copy of a state."""
        return self.engine.fork(state)

    # ---------------------------------------------------------------- requests
    def run(self, request: Any, inputs: Sequence[ClientInput] = ()) -> Outcome:
        """Serve one request, to which its client says more."""
        return self.run_all([request], inputs)[0]

    def run_all(self, requests: Sequence[Any], inputs: Sequence[ClientInput] = ()) -> list[Outcome]:
        """Serve several requests at the same time; the same is said to all of them."""
        served = [self._admit(request, inputs) for request in requests]
        while active := [one for one in served if one.walk_run is not None]:
            self._step(active)
            for one in served:
                if one.walk_run is not None and one.walk_run.is_done:
                    self._advance(one, self._collect(one))
        return [one.outcome for one in served]

    def _admit(self, request: Any, inputs: Sequence[ClientInput]) -> _LocalRequest:
        engine = self.engine
        route = RouteRun(self.model, request, lambda owner, kind: StateHandle(engine, engine.new_state(owner, kind)))
        served = _LocalRequest(route, Outcome([]), InputLog(inputs))
        self._advance(served, None)
        return served

    def _advance(self, served: _LocalRequest, result: Any) -> None:
        """Give a route the result of its walk and start the next ones, until one has something to wait for."""
        while (wanted := served.route.advance(result)) is not None:
            if isinstance(wanted, NextInput):
                served.outcome.answers.append(wanted.answer)
                result = served.inputs.consume()
                continue
            served.interruption = served.inputs.find_interruption(served.walks) if wanted.is_interruptible else None
            served.walks += 1
            served.walk_run = self._start(wanted)
            if not served.walk_run.is_done:
                return
            result = self._collect(served)
        served.walk_run = None
        served.outcome.result = served.route.result

    def _start(self, call: WalkCall[Any, Any]) -> _WalkRun:
        the_plan = self.plans.walks[call.name]
        workers = [self._random.choice(spot.workers) for spot in the_plan.worker_sets]
        runs = [
            PartitionRun(part, self, self._ready[workers[part.seat]], has_minimal_buffers=self.min_stream_buffers)
            for part in the_plan.programs
        ]
        tour = _WalkRun(call, the_plan, runs)
        given = [call.arguments[name] for name in the_plan.input_names]
        for run in runs:
            # a copy for each: only what the plan brings back may reach the route's states
            run.start([self.fork(value.state) if isinstance(value, StateHandle) else value for value in given])
            tour.send_outbox(run)
        return tour

    def _collect(self, served: _LocalRequest) -> Any:
        """What a finished walk gave: emissions to the client, states to their handles, results to the route."""
        tour = served.walk_run
        assert tour is not None
        tour.deliver_remaining()
        outputs: dict[int, Any] = {}
        handles: dict[int, StateHandle] = {}
        given = (pair for run in tour.runs for pair in run.emissions)
        emitted = [KINDS[table.kind](value, **dict(table.clock)) for table, value in given]
        if served.interruption is not None:  # the route's states are still as they were: runs have copies
            served.outcome.emissions.extend(received_emissions(emitted, served.outcome.emissions, served.interruption))
            return INTERRUPTED
        served.outcome.emissions.extend(emitted)
        for run in tour.runs:
            outputs |= run.outputs
            for index, state in run.states.items():
                handle = tour.call.arguments[tour.plan.input_names[index]]
                handle.state = state
                handles[id(state)] = handle
        values = [
            handles.get(id(value)) or StateHandle(self.engine, value) if isinstance(value, State) else value
            for _, value in sorted(outputs.items())
        ]
        return tuple(values) if tour.plan.gives_tuple else values[0] if values else None

    # ---------------------------------------------------------------- the schedule
    def _step(self, active: list[_LocalRequest]) -> None:
        """Do one thing, chosen at random: deliver a message or run a batch."""
        tours = [one.walk_run for one in active if one.walk_run is not None]
        mail = [(tour, key) for tour in tours for key, queue in tour.channels.items() if queue]
        workers = [worker for worker, calls in self._ready.items() if calls]
        if not mail and not workers:
            raise DeadlockError(f"nothing can run in walks {sorted({tour.call.name for tour in tours})}")
        pick = self._random.randrange(len(mail) + len(workers))
        if pick < len(mail):
            tour, key = mail[pick]
            run = tour.runs[key[1]]
            run.deliver(tour.channels[key].popleft())
            tour.send_outbox(run)
        else:
            errors = self._run_batch(self._ready[workers[pick - len(mail)]])
            for one in active:
                self._after_batch(one, errors)

    def _run_batch(self, calls: list[ReadyInstruction]) -> dict[Run, Exception]:
        """Some of the calls that are ready at a worker and share a batch key, as one; which runs failed."""
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

    def _after_batch(self, one: _LocalRequest, errors: dict[Run, Exception]) -> None:
        """Put a request's messages on their way, or end it if one of its calls has failed."""
        tour = one.walk_run
        assert tour is not None
        one.outcome.error = next((errors[run] for run in tour.runs if run in errors), None)
        if one.outcome.error is None:
            for run in tour.runs:
                tour.send_outbox(run)
            return
        for calls in self._ready.values():
            calls[:] = [call for call in calls if call[0].run not in tour.runs]
        self._partial_jobs = {key: job for key, job in self._partial_jobs.items() if key[0].run not in tour.runs}
        tour.release()
        one.route.close()
        one.walk_run = None


def _batch_key_index(ready: ReadyInstruction) -> int:
    call = ready[1].detail
    assert isinstance(call, Call)
    return call.key
