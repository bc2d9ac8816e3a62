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
from mstar.engine.jobs import Done, Failed, Job
from mstar.errors import MstarError
from mstar.plan.compile import plan
from mstar.plan.frame import Frame, Ready
from mstar.plan.placement import Placement
from mstar.plan.run import Run, complete
from mstar.plan.tables import Call, Plan, Plans
from mstar.plan.wires import Message
from mstar.walk.emissions import KINDS
from mstar.walk.model import Model, Outcome, RouteRun, WalkCall
from mstar.walk.said import CUT, Ears, More, Said, kept
from mstar.walk.states import State


class StateHandle(State):
    """What a route holds for a state that lives elsewhere."""

    def __init__(self, engine: Engine, real: State) -> None:
        self.engine = engine
        self.real = real

    def fork(self) -> StateHandle:
        """A handle for a fork of the state."""
        return StateHandle(self.engine, self.engine.fork(self.real))


class Stuck(MstarError):
    """Requests are left, but nothing can run: a bug in the planner or in the rules that admit a walk."""


@dataclass(eq=False)
class _Tour:
    """One walk of one request: a run per seat, and the messages on their way between them."""

    call: WalkCall[Any, Any]
    plan: Plan
    runs: list[Run]
    channels: dict[tuple[int, int], deque[Message]] = field(default_factory=dict[tuple[int, int], deque[Message]])

    def post(self, run: Run) -> None:
        """Put what a run has to say on its way; order is kept between two seats, not among more."""
        for message in run.outbox:
            self.channels.setdefault((run.part.seat, message.seat), deque()).append(message)
        run.outbox.clear()

    def settle(self) -> None:
        """Deliver what is still on its way after the end; then nothing of the walk may be left anywhere."""
        for (_, target), queue in self.channels.items():
            while queue:
                self.runs[target].deliver(queue.popleft())
        left = [what for run in self.runs for what in (*run.leftovers(), *map(str, run.outbox))]
        if left:
            raise Stuck(f"walk {self.plan.walk} ended and left {left}")

    def drop(self) -> None:
        """Let go of everything."""
        for run in self.runs:
            run.drop()

    @property
    def is_over(self) -> bool:
        """Whether every seat has come to its end."""
        return all(run.is_done for run in self.runs)


@dataclass(eq=False)
class _Served:
    """One request."""

    route: RouteRun
    outcome: Outcome
    ears: Ears
    walks: int = 0
    tour: _Tour | None = None
    cut: Said | None = None
    """What its client says while its walk runs, and so cuts it."""


class LocalRuntime:
    """Serves requests to one model in this process."""

    def __init__(
        self,
        model: Model,
        placement: Placement | None = None,
        *,
        seed: int = 0,
        is_tight: bool = False,
        largest_batch: int = 8,
        token_budget: int | None = None,
    ) -> None:
        self.model = model
        self.engine = Engine(token_budget=token_budget)
        self.plans: Plans = plan(model.graphs(), placement)
        self.is_tight = is_tight
        self.largest_batch = largest_batch
        self.batches: list[tuple[str, int]] = []
        """What ran, in order: the op and how many calls of it were handed to the engine."""
        self._random = random.Random(seed)
        self._components = model.components()
        self._ops = {name: component.ops() for name, component in self._components.items()}
        self._ready: defaultdict[str, list[Ready]] = defaultdict(list)
        self._begun: dict[tuple[Frame, int], Job] = {}
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
    def run(self, request: Any, said: Sequence[Said] = ()) -> Outcome:
        """Serve one request, to which its client says more."""
        return self.run_all([request], said)[0]

    def run_all(self, requests: Sequence[Any], said: Sequence[Said] = ()) -> list[Outcome]:
        """Serve several requests at the same time; the same is said to all of them."""
        served = [self._admit(request, said) for request in requests]
        while active := [one for one in served if one.tour is not None]:
            self._step(active)
            for one in served:
                if one.tour is not None and one.tour.is_over:
                    self._advance(one, self._collect(one))
        return [one.outcome for one in served]

    def _admit(self, request: Any, said: Sequence[Said]) -> _Served:
        engine = self.engine
        route = RouteRun(self.model, request, lambda owner, kind: StateHandle(engine, engine.new_state(owner, kind)))
        served = _Served(route, Outcome([]), Ears(said))
        self._advance(served, None)
        return served

    def _advance(self, served: _Served, result: Any) -> None:
        """Give a route the result of its walk and start the next ones, until one has something to wait for."""
        while (wanted := served.route.advance(result)) is not None:
            if isinstance(wanted, More):
                served.outcome.answers.append(wanted.answer)
                result = served.ears.hear()
                continue
            served.cut = served.ears.cutting(served.walks) if wanted.is_cuttable else None
            served.walks += 1
            served.tour = self._start(wanted)
            if not served.tour.is_over:
                return
            result = self._collect(served)
        served.tour = None
        served.outcome.result = served.route.result

    def _start(self, call: WalkCall[Any, Any]) -> _Tour:
        the_plan = self.plans.walks[call.name]
        workers = [self._random.choice(spot.workers) for spot in the_plan.spots]
        runs = [Run(part, self, self._ready[workers[part.seat]], is_tight=self.is_tight) for part in the_plan.parts]
        tour = _Tour(call, the_plan, runs)
        given = [call.arguments[name] for name in the_plan.input_names]
        for run in runs:
            # a copy for each: only what the plan brings back may reach the route's states
            run.start([self.fork(value.real) if isinstance(value, StateHandle) else value for value in given])
            tour.post(run)
        return tour

    def _collect(self, served: _Served) -> Any:
        """What a finished walk gave: emissions to the client, states to their handles, results to the route."""
        tour = served.tour
        assert tour is not None
        tour.settle()
        outputs: dict[int, Any] = {}
        handles: dict[int, StateHandle] = {}
        given = (pair for run in tour.runs for pair in run.emitted)
        emitted = [KINDS[table.kind](value, **dict(table.clock)) for table, value in given]
        if served.cut is not None:  # the route's states are still as they were: runs have copies
            served.outcome.emissions.extend(kept(emitted, served.outcome.emissions, served.cut))
            return CUT
        served.outcome.emissions.extend(emitted)
        for run in tour.runs:
            outputs |= run.outputs
            for index, state in run.states.items():
                handle = tour.call.arguments[tour.plan.input_names[index]]
                handle.real = state
                handles[id(state)] = handle
        values = [
            handles.get(id(value)) or StateHandle(self.engine, value) if isinstance(value, State) else value
            for _, value in sorted(outputs.items())
        ]
        return tuple(values) if tour.plan.gives_tuple else values[0] if values else None

    # ---------------------------------------------------------------- the schedule
    def _step(self, active: list[_Served]) -> None:
        """Do one thing, chosen at random: deliver a message or run a batch."""
        tours = [one.tour for one in active if one.tour is not None]
        mail = [(tour, key) for tour in tours for key, queue in tour.channels.items() if queue]
        workers = [worker for worker, calls in self._ready.items() if calls]
        if not mail and not workers:
            raise Stuck(f"nothing can run in walks {sorted({tour.call.name for tour in tours})}")
        pick = self._random.randrange(len(mail) + len(workers))
        if pick < len(mail):
            tour, key = mail[pick]
            run = tour.runs[key[1]]
            run.deliver(tour.channels[key].popleft())
            tour.post(run)
        else:
            errors = self._run_batch(self._ready[workers[pick - len(mail)]])
            for one in active:
                self._follow(one, errors)

    def _run_batch(self, calls: list[Ready]) -> dict[Run, Exception]:
        """Some of the calls that are ready at a worker and share a batch key, as one; which runs failed."""
        key = _key(self._random.choice(calls))
        same_key = [call for call in calls if _key(call) == key]
        batch = self._random.sample(same_key, self._random.randint(1, min(len(same_key), self.largest_batch)))
        name = self.plans.keys[key]
        self.batches.append((str(name), len(batch)))
        jobs = [self._begun.pop((frame, call.index), None) or Job(frame.arguments(call)) for frame, call in batch]
        results = self.engine.run(self._components[name.component], self._ops[name.component][name.op], jobs)
        errors: dict[Run, Exception] = {}
        for ready, job, result in zip(batch, jobs, results, strict=True):
            if isinstance(result, Failed):
                errors[ready[0].run] = result.error
            elif isinstance(result, Done):
                calls.remove(ready)
                complete([ready], [result.values])
            else:
                self._begun[ready[0], ready[1].index] = job
        return errors

    def _follow(self, one: _Served, errors: dict[Run, Exception]) -> None:
        """Put a request's messages on their way, or end it if one of its calls has failed."""
        tour = one.tour
        assert tour is not None
        one.outcome.error = next((errors[run] for run in tour.runs if run in errors), None)
        if one.outcome.error is None:
            for run in tour.runs:
                tour.post(run)
            return
        for calls in self._ready.values():
            calls[:] = [call for call in calls if call[0].run not in tour.runs]
        self._begun = {key: job for key, job in self._begun.items() if key[0].run not in tour.runs}
        tour.drop()
        one.route.close()
        one.tour = None


def _key(ready: Ready) -> int:
    call = ready[1].detail
    assert isinstance(call, Call)
    return call.key
