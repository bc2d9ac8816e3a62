"""Cost of a tick beside idle streams: the cores of conductor, front end and worker in virtual time.

    python -m bench.cost.ticks [--streams 1000 10000 100000]

A live stream must cost no periodic work, so the cost of a tick must not depend on the number of idle streams. Two
figures: executed bytecodes, which do not depend on the machine, and CPU time. Loops inside C functions appear only in
the CPU time.

Workload: of all streams of a conductor half await input, 40 % run a walk without any output, as those of clients that
do not read, and 10 % are queued. Workers exist as heartbeats. A conductor has one fleet of these:

| fleet | what its ticks do besides heartbeats and timeouts |
|---|---|
| fixed | nothing |
| autoscaled | evaluates the load of replica groups |
| rolling update | keeps a draining worker that streams need |
| unresponsive worker | looks for other workers for the walks of a silent one |
| no worker | looks whether walks have waited for a worker for too long |
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from mstar.conductor.core import ConductorCore
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.model import ConductorModel
from mstar.engine.jobs import JobDone
from mstar.frontend.core import FrontendCore, RequestOpened
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.tables import Plans
from mstar.walk.component import Component, op
from mstar.walk.emissions import Text
from mstar.walk.model import Model, walk
from mstar.wire import messages as m
from mstar.wire.message import MessageReceived, Tick
from mstar.wire.stats import WorkerLoad
from mstar.worker.commands import Batch, BatchFinished
from mstar.worker.core import WorkerCore
from mstar.worker.scheduling.scheduler import BatchLimits

STREAMS = (1_000, 10_000, 100_000)
TICKS, TICK_S = 1_000, 0.1
WARMUP_TICKS = 40
"""Ticks until the conductor has settled and a silent worker is unresponsive. It is killed after 1,200."""
NEVER_S = 1e9
CONDUCTOR, LAUNCHER, FRONTEND = m.Peer("conductor", 0), m.Peer("launcher", 0), m.Peer("frontend", 0)


class Incrementer(Component):
    """A component whose op is not executed here."""

    @op
    def next(self, number: int) -> int:
        """Return the next number."""
        return number + 1


class Session(Model):
    """Answers an odd request, and waits for the input of an even one."""

    def __init__(self) -> None:
        self.incrementer = Incrementer()

    @walk
    def answer(self, number: int) -> Iterator[Text]:
        """Emit one number."""
        yield Text(self.incrementer.next(number))

    async def route(self, number: int) -> int:
        """One walk, or one input."""
        if number % 2:
            await self.answer(number)
        else:
            await self.next_input(number)
        return number


def plan_session(place: object) -> tuple[Session, Plans]:
    """The model with a placement rule for its component."""
    model = Session()
    return model, plan(model.graphs(), parse_placement({"place": {"incrementer": place}}, "bench.cost.ticks"))


class Ticking(Protocol):
    """A process with idle streams."""

    def tick(self) -> None:
        """Advance the time by one tick, and handle everything that happens periodically."""
        ...


# ---------------------------------------------------------------- processes with idle streams
@dataclass(frozen=True)
class Fleet:
    """The workers of a conductor."""

    place: Any
    """Placement rule."""
    up: tuple[str, ...] = ("a", "b")
    """Workers that register."""
    is_silent: bool = False
    """Whether they send no heartbeats."""
    is_rolling: bool = False
    """Whether their weights are updated."""


FLEETS: Mapping[str, Fleet] = {
    "fixed": Fleet(["a", "b"]),
    "autoscaled": Fleet({"workers": ["a", "b"], "min_replicas": 1}),
    "rolling update": Fleet({"workers": ["a", "b"], "min_replicas": 1}, is_rolling=True),
    "unresponsive worker": Fleet(["a"], up=("a",), is_silent=True),
    "no worker": Fleet(["a"], up=()),
}


class IdleConductor:
    """A conductor core with idle streams."""

    def __init__(self, fleet: Fleet, streams: int) -> None:
        limits = ConductorLimits(
            max_running_requests=streams - streams // 10,
            max_queued_requests=streams,
            worker_wait_s=NEVER_S,
            drain_timeout_s=NEVER_S,
        )
        model = ConductorModel.from_plans(*plan_session(fleet.place))
        self.core = ConductorCore(CONDUCTOR, LAUNCHER, {"session": model}, limits)
        self.now = 0.0
        self._workers = [m.Peer(name, 0) for name in fleet.up]
        self._heartbeat = None if fleet.is_silent else m.Heartbeat(0.0, WorkerLoad(0.0, {}, 0, 0))
        for peer in self._workers:
            self._receive(peer, m.Register())
        for number in range(streams):
            content = 0 if number < streams // 2 else 1
            self._receive(FRONTEND, m.Submit(f"r{number}", "session", m.Value(content), "", NEVER_S))
        if fleet.is_rolling:
            self._receive(LAUNCHER, m.RollWeights(1))

    def _receive(self, sender: m.Peer, message: m.Message) -> None:
        self.core.step(self.now, MessageReceived(sender, message))

    def tick(self) -> None:
        """Receive the heartbeats of workers, and tick."""
        self.now += TICK_S
        if self._heartbeat is not None:
            for peer in self._workers:
                self._receive(peer, self._heartbeat)
        self.core.step(self.now, Tick())


class IdleFrontend:
    """A front-end core with idle streams. Half of them have delivered something."""

    def __init__(self, streams: int) -> None:
        self.core = FrontendCore(FRONTEND, {"session": CONDUCTOR}, lambda content: content)
        self.now = 0.0
        for number in range(streams):
            rid = f"r{number}"
            self.core.step(self.now, RequestOpened(m.Submit(rid, "session", m.Value(number), "", NEVER_S)))
            if number % 2:
                emit = m.Emit(rid, 0, "Text", 0, m.Value(number))
                self.core.step(self.now, MessageReceived(m.Peer("a", 0), emit))

    def tick(self) -> None:
        """Tick."""
        self.now += TICK_S
        self.core.step(self.now, Tick())


class IdleWorker:
    """A worker core with requests that have run a walk and wait for the next input of their clients."""

    def __init__(self, streams: int) -> None:
        _, plans = plan_session(["a"])
        self._peer = m.Peer("a", 0)
        self.core = WorkerCore(self._peer, CONDUCTOR, {"session": plans}, ("session.incrementer",), BatchLimits())
        self.now = 0.0
        self.core.step(self.now, MessageReceived(CONDUCTOR, m.Heartbeat()))
        for number in range(streams):
            inputs: dict[int, m.WalkInput] = {0: m.ValueInput(m.Value(number))}
            start = m.StartWalk(f"r{number}", 0, 0, "session", "answer", (self._peer,), inputs, {}, FRONTEND)
            for action in self.core.step(self.now, MessageReceived(CONDUCTOR, start)):
                if isinstance(action, Batch):
                    self.core.step(self.now, BatchFinished(action.number, [JobDone((number,))], 0.001))

    def tick(self) -> None:
        """Receive the heartbeat of the conductor, and tick."""
        self.now += TICK_S
        self.core.step(self.now, MessageReceived(CONDUCTOR, m.Heartbeat()))
        self.core.step(self.now, Tick())


def _conductor(fleet: Fleet) -> Callable[[int], Ticking]:
    return lambda streams: IdleConductor(fleet, streams)


PROCESSES: Mapping[str, Callable[[int], Ticking]] = {
    **{f"conductor, {name}": _conductor(fleet) for name, fleet in FLEETS.items()},
    "front end": IdleFrontend,
    "worker": IdleWorker,
}
"""By name, how a process with a number of idle streams is made."""


# ---------------------------------------------------------------- measurement
def count_bytecodes(action: Callable[[], object]) -> int:
    """Number of bytecodes that an action executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(previous)
    return count


@dataclass(frozen=True)
class TickCost:
    """Mean cost of a tick."""

    bytecodes: float
    cpu_us: float


def measure(process: Ticking, ticks: int = TICKS) -> TickCost:
    """Count the bytecodes of these ticks, after the CPU time of a tenth as many was measured without the counter."""
    for _ in range(WARMUP_TICKS):
        process.tick()
    gc.collect()
    gc.freeze()  # as in the processes of a server: the objects of streams are not to be collected while they wait
    timed = ticks // 10
    try:
        started = time.process_time_ns()
        for _ in range(timed):
            process.tick()
        cpu_us = (time.process_time_ns() - started) / 1000
    finally:
        gc.unfreeze()
    return TickCost(count_bytecodes(lambda: [process.tick() for _ in range(ticks)]) / ticks, cpu_us / timed)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="Measure the cost of a tick beside idle streams.")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS, help="Numbers of idle streams.")
    numbers = parser.parse_args().streams
    print(f"cost of a tick: bytecodes (mean of {TICKS}) / CPU us (mean of {TICKS // 10})")
    print(f"{'process':32}", *(f"{number:>18,}" for number in numbers))
    for name, make in PROCESSES.items():
        costs = [measure(make(number)) for number in numbers]
        print(f"{name:32}", *(f"{cost.bytecodes:>9.0f} /{cost.cpu_us:>7.1f}" for cost in costs), flush=True)


if __name__ == "__main__":
    main()
