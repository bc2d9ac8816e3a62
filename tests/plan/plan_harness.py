"""Shared by the plan tests: a small component, and a harness that drives the seats of a walk by hand."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from pathlib import Path

from mstar import Component, State, Static, View, op
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.runtime.run import PartitionRun, columns, complete
from mstar.walk.load import load_model

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    """Load an example: its model and requests."""
    model = load_model(str(EXAMPLES / f"{name}.py"))
    return model, sys.modules[type(model).__module__].requests()


def make_placement(walks=None, /, **place):
    """Build a placement: `a="w0", a_inc="w1"` puts component `a` on one worker and its op `inc` on another."""
    table = {key.replace("_", ".", 1): workers for key, workers in place.items()}
    return parse_placement({"place": table, "walks": walks or {}})


class Memory(State):
    """Numbers that a component received."""

    def __init__(self):
        self.seen: list[int] = []


class IntOps(Component):
    """Small ops on integers."""

    @op
    def inc(self, x: int) -> int:
        return x + 1

    @op
    def add(self, x: int, y: int) -> int:
        return x + y

    @op
    def pair(self, x: int) -> tuple[int, int]:
        return x, x * 10

    @op
    def upto(self, n: int) -> list[int]:
        return [*range(n)]

    @op
    def fold(self, xs: list[int]) -> int:
        total = 0
        for x in xs:
            total = total * 10 + x
        return total

    @op
    def is_big(self, x: int) -> bool:
        return x >= 3

    @op
    def tell(self, x: int, memory: Memory) -> int:
        memory.seen.append(x)
        return len(memory.seen)

    @op
    def note(self, x: int, memory: Memory) -> None:
        memory.seen.append(x)

    @op
    def recall(self, memory: View[Memory]) -> list[int]:
        return [*memory.seen]

    @op
    def times(self, x: int, by: Static[int]) -> int:
        return x * by


class WalkHarness:
    """All seats of one walk of one request. A test triggers every call and delivery."""

    def __init__(self, model, placement=None, *, walk=None, is_tight=False):
        plans = plan(model.graphs(), placement)
        self.components = model.components()
        self.keys = plans.keys
        self.plan = plans.walks[walk or next(iter(plans.walks))]
        self.forked = 0
        self.created = []
        self.channels = defaultdict(deque)
        self.runs = [PartitionRun(part, self, [], has_minimal_buffers=is_tight) for part in self.plan.programs]

    # ---------------------------------------------------------------- host of the runs
    def new_state(self, component, kind):
        self.created.append((component, kind))
        owner = self.components[component]
        return owner.make_state(owner.state_kinds()[kind])

    def fork(self, state):
        self.forked += 1
        return state.fork()

    # ---------------------------------------------------------------- controls
    def start(self, *inputs):
        for run in self.runs:
            run.start(inputs)
            self.collect_messages(run)
        return self

    def collect_messages(self, run):
        for message in run.outbox:
            self.channels[run.program.seat, message.seat].append(message)
        run.outbox.clear()

    def seat(self, worker):
        """Number of the only seat of this worker."""
        (number,) = [seat for seat, worker_set in enumerate(self.plan.worker_sets) if worker_set.workers == (worker,)]
        return number

    def name(self, ready):
        return str(self.keys[ready[1].detail.key])

    def ready(self, seat=0):
        """The ops whose calls are ready at a seat."""
        return sorted(self.name(call) for call in self.runs[seat].ready)

    def call(self, name, seat=0):
        """Run the first ready call of an op; returns its result."""
        run = self.runs[seat]
        chosen = next(call for call in run.ready if self.name(call) == name)
        run.ready.remove(chosen)
        component, _, op_name = name.partition("[")[0].partition(".")
        owner = self.components[component]
        (result,) = owner.ops()[op_name].run(owner, columns([chosen]), 1)
        complete([chosen], [result])
        self.collect_messages(run)
        return result

    def pending_messages(self, source, target):
        """Kinds of the undelivered messages from one seat to another."""
        return [message.kind.name for message in self.channels[source, target]]

    def deliver(self, source, target, count=None):
        """Deliver `count` messages (default: all) in order."""
        queue, run = self.channels[source, target], self.runs[target]
        for _ in range(len(queue) if count is None else count):
            run.deliver(queue.popleft())
            self.collect_messages(run)

    def calls_at(self, seat):
        """Run ready calls of a seat until none is left; returns their number."""
        done = 0
        while self.runs[seat].ready:
            self.call(self.name(self.runs[seat].ready[0]), seat)
            done += 1
        return done

    def finish(self):
        """Run and deliver everything; then every seat must be done and hold nothing."""
        moved = True
        while moved:
            moved = sum(self.calls_at(seat) for seat in range(len(self.runs)))
            for source, target in [pair for pair, queue in self.channels.items() if queue]:
                moved += len(self.channels[source, target])
                self.deliver(source, target)
        assert all(run.is_done for run in self.runs)
        assert [run.pending() for run in self.runs] == [[] for _ in self.runs]
        return self

    @property
    def outputs(self):
        merged = {}
        for run in self.runs:
            merged |= run.outputs
        return [value for _, value in sorted(merged.items())]

    @property
    def states(self):
        merged = {}
        for run in self.runs:
            merged |= run.states
        return merged

    @property
    def emitted(self):
        return [value for run in self.runs for _, value in run.emissions]
