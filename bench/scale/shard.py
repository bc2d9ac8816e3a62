"""One conductor with its workers and its front end in virtual time, and the CPU time of each core by kind of work.

The production cores decide; messages arrive after a fixed delay. Nothing is encoded and no socket is used: those costs
are in `python -m bench ledger`. Clients open a call for each stream, send inputs, and begin the next
call when it has ended. Workers that die are replaced after `RESTART_S`, as a launcher does.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from bench.scale.model import CHUNK_S, CHUNKS_PER_TURN, MEAN_THINK_S, MEAN_TURNS, Calls, ConstantEngine
from mstar import process_tuning
from mstar.conductor.core import ConductorCore
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.model import ConductorModel
from mstar.frontend.actor import short_digest
from mstar.frontend.core import (
    CREDIT_INTERVAL,
    AwaitingInput,
    Deliver,
    FrontendCore,
    InputSent,
    OutputsConsumed,
    RequestEnded,
    RequestOpened,
)
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.wire import messages as m
from mstar.wire.message import MessageReceived, SendMessage, Tick
from mstar.wire.transport.actor_loop import SLOW_TICKS, TICK_INTERVAL_S
from mstar.worker.commands import BatchFinished, Command, ExportFinished
from mstar.worker.core import WorkerCore
from mstar.worker.scheduling.scheduler import BatchLimits

HOP_S = 0.0005
"""Seconds of one hop between processes."""
START_S, RAMP_S, SETTLE_S = 1.0, 10.0, 1.0
"""Seconds in which processes start, in which the streams are opened, and until the measurement begins."""
DETECTION_S, RESTART_S = 0.02, 2.0
"""Seconds until a launcher reports a death, and until the next incarnation registers."""
STREAMS_PER_TENANT = 1_000
NEVER_S = 1e9
CORES = ("front end", "conductor", "worker")
PERIODIC, CHUNK, TURN, REQUEST = "periodic", "chunk", "turn", "request"
KINDS_OF_WORK: dict[type, str] = {
    **dict.fromkeys((Tick, m.Heartbeat), PERIODIC),
    **dict.fromkeys((BatchFinished, m.Emit, OutputsConsumed, m.Credit), CHUNK),
    **dict.fromkeys((InputSent, m.ClientInput, m.InputAccepted, m.TurnFinished, m.StartWalk, m.SeatDone), TURN),
}
"""What an event or message is for; the others begin, move and end requests."""
LAUNCHER, CONDUCTOR, FRONTEND = m.Peer("launcher", 0), m.Peer("conductor", 0), m.Peer("front", 0)
TICKS_S = {"front end": SLOW_TICKS.min_s, "conductor": SLOW_TICKS.min_s, "worker": TICK_INTERVAL_S}


@dataclass(frozen=True)
class ShardLoad:
    """What one shard has to do."""

    streams: int
    workers: int
    seconds: float
    """Virtual seconds that are measured."""
    dying_workers: int = 0
    """Workers that die in this time, one after another."""


@dataclass
class ShardCost:
    """What it took."""

    core_s: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict[tuple[str, str], float](float))
    """CPU seconds by core and kind of work."""
    events: int = 0
    requests: int = 0
    """Requests that ended."""
    turns: int = 0
    """Inputs of clients that were answered."""
    chunks: int = 0
    """Chunks that clients received."""
    statuses: Counter[str] = field(default_factory=Counter[str])
    """Number of requests by final status."""
    bytes: int = 0
    """Resident memory of all cores and of this driver, without that of the program."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all cores."""
        return sum(self.core_s.values())

    def to_json(self) -> str:
        """Encode as one line."""
        return json.dumps(vars(self) | {"core_s": {"/".join(key): spent for key, spent in self.core_s.items()}})

    @classmethod
    def from_json(cls, line: str) -> ShardCost:
        """Decode what `to_json` returned."""
        fields = json.loads(line)
        core_s = {tuple(key.split("/")): spent for key, spent in fields.pop("core_s").items()}
        return cls(core_s=defaultdict(float, core_s), statuses=Counter(fields.pop("statuses")), **fields)

    def add(self, other: ShardCost) -> None:
        """Add another shard."""
        for key, spent in other.core_s.items():
            self.core_s[key] += spent
        self.statuses.update(other.statuses)
        self.events += other.events
        self.requests += other.requests
        self.turns += other.turns
        self.chunks += other.chunks
        self.bytes += other.bytes


class _Actor:
    """Drives one core, and measures it."""

    def __init__(self, shard: Shard, kind: str, peer: m.Peer, core: Any) -> None:
        self.shard = shard
        self.kind = kind
        self.peer = peer
        self.core = core
        self.is_dead = False
        shard.actors[peer] = self
        shard.schedule(shard.rng.random() * TICKS_S[kind], self._tick)

    def step(self, event: Any) -> None:
        """Step the core, and perform its actions."""
        if self.is_dead:
            return
        began = time.perf_counter_ns()
        actions = self.core.step(self.shard.now, event)
        spent = time.perf_counter_ns() - began
        kind = type(event.message) if type(event) is MessageReceived else type(event)
        self.shard.record(self.kind, KINDS_OF_WORK.get(kind, REQUEST), spent)
        for action in actions:
            if type(action) is SendMessage:
                self.shard.send(self.peer, action)
            else:
                self.perform(action)

    def perform(self, action: Any) -> None:
        """Perform an action that is not a message."""
        raise NotImplementedError

    def _tick(self) -> None:
        self.step(Tick())
        if not self.is_dead:
            self.shard.schedule(TICKS_S[self.kind], self._tick)


class _Worker(_Actor):
    """A worker with an engine that executes one command after another."""

    def __init__(self, shard: Shard, peer: m.Peer) -> None:
        super().__init__(shard, "worker", peer, WorkerCore(peer, CONDUCTOR, shard.plans, (), BatchLimits()))
        self._engine = ConstantEngine()
        self._commands: deque[Command] = deque()
        self._is_busy = False
        shard.send(peer, SendMessage(CONDUCTOR, m.Register()))

    def perform(self, action: Command) -> None:
        """Queue a command for the engine."""
        self._commands.append(action)
        self._execute()

    def _execute(self) -> None:
        while self._commands and not self._is_busy:
            report = self._engine.execute(self._commands.popleft())
            if isinstance(report, BatchFinished):
                self._is_busy = True
                self.shard.schedule(report.seconds, self._finish, report)
            elif report is not None:
                self.shard.schedule(HOP_S, self.step, report)

    def _finish(self, report: BatchFinished | ExportFinished) -> None:
        self._is_busy = False
        self.step(report)
        self._execute()


class _Conductor(_Actor):
    """The conductor. All its actions are messages."""


class _Frontend(_Actor):
    """A front end with clients that have one call at a time."""

    def __init__(self, shard: Shard) -> None:
        core = FrontendCore(FRONTEND, {"calls": CONDUCTOR}, short_digest)
        super().__init__(shard, "front end", FRONTEND, core)
        self._opened = 0
        self._turns: dict[str, int] = {}
        """By open call, how many more inputs its client will send."""

    def open(self, stream: int) -> None:
        """Begin the next call of a stream."""
        self._opened += 1
        rid, tenant = f"{stream}-{self._opened}", f"tenant{stream // STREAMS_PER_TENANT}"
        turns = self.shard.rng.randrange(1, 2 * MEAN_TURNS)
        is_first = self._opened <= self.shard.load.streams  # calls that have begun before, at any of their turns
        self._turns[rid] = self.shard.rng.randrange(turns + 1) if is_first else turns
        self.step(RequestOpened(m.Submit(rid, "calls", m.Value(0), tenant, NEVER_S)))

    def perform(self, action: Deliver | AwaitingInput | RequestEnded) -> None:
        """Be the client of a call."""
        shard = self.shard
        if isinstance(action, Deliver):
            shard.cost.chunks += 1
            if not (action.index + 1) % CREDIT_INTERVAL:
                self.step(OutputsConsumed(action.rid, action.kind, action.index + 1))
        elif isinstance(action, AwaitingInput):
            shard.cost.turns += action.number > 0
            answer_s = CHUNKS_PER_TURN * CHUNK_S
            first, last = (
                (0.0, answer_s + MEAN_THINK_S) if not action.number else (answer_s, answer_s + 2 * MEAN_THINK_S)
            )
            shard.schedule(shard.rng.uniform(first, last), self._send_input, action.rid)
        else:
            shard.cost.requests += 1
            end = action.end
            shard.cost.statuses[end.status if isinstance(end, m.RequestFinished) else "rejected"] += 1
            del self._turns[action.rid]
            shard.schedule(HOP_S, self.open, int(action.rid.partition("-")[0]))

    def _send_input(self, rid: str) -> None:
        left, self._turns[rid] = self._turns[rid], self._turns[rid] - 1
        self.step(InputSent(rid, left or None))


class Shard:
    """One run of a shard."""

    def __init__(self, load: ShardLoad, seed: int = 0) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.cost = ShardCost()
        self.actors: dict[m.Peer, _Actor] = {}
        """Live processes."""
        self.load = load
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._messages: deque[tuple[float, _Actor, MessageReceived]] = deque()
        """Messages in transit. All take the same time, so this is their order."""
        self._workers = [f"w{number}" for number in range(load.workers)]
        model = Calls()
        plans = plan(model.graphs(), parse_placement({"place": {"speaker": self._workers}}, "bench.scale"))
        self.plans = {"calls": plans}
        limits = ConductorLimits(max_running_requests=4 * load.streams, max_queued_requests=load.streams)
        conductor_model = ConductorModel.from_plans(model, plans)
        _Conductor(self, "conductor", CONDUCTOR, ConductorCore(CONDUCTOR, LAUNCHER, {"calls": conductor_model}, limits))
        self._frontend = _Frontend(self)
        for name in self._workers:
            _Worker(self, m.Peer(name, 0))

    def run(self) -> ShardCost:
        """Open all streams, then measure."""
        load = self.load
        process_tuning.freeze_heap()
        before = process_tuning.process_usage()["rss_bytes"]
        for stream in range(load.streams):
            self.schedule(START_S + RAMP_S * stream / load.streams, self._frontend.open, stream)
        begin = START_S + RAMP_S + SETTLE_S
        self._run_until(begin)
        self.cost = ShardCost()
        for number in range(load.dying_workers):
            name = self._workers[number * len(self._workers) // load.dying_workers]
            self.schedule((number + 1) * load.seconds / (load.dying_workers + 1), self._kill, m.Peer(name, 0))
        began, began_cpu = time.perf_counter(), time.process_time()
        self._run_until(begin + load.seconds)
        # Cores are timed with the wall clock, which is cheap to read; other processes take some of it.
        own_share = (time.process_time() - began_cpu) / (time.perf_counter() - began)
        for key in self.cost.core_s:
            self.cost.core_s[key] *= own_share
        gc.collect()
        self.cost.bytes = process_tuning.process_usage()["rss_bytes"] - before
        return self.cost

    # ---------------------------------------------------------------- used by the actors
    def schedule(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back after some seconds."""
        self._scheduled += 1
        heappush(self._heap, (self.now + seconds, self._scheduled, callback, arguments))

    def send(self, sender: m.Peer, send: SendMessage) -> None:
        """Deliver a message after one hop, if its receiver is live now and then."""
        if (actor := self.actors.get(send.to)) is not None:
            self._messages.append((self.now + HOP_S, actor, MessageReceived(sender, send.message)))

    def record(self, core: str, work: str, nanoseconds: int) -> None:
        """Add the time of a step."""
        self.cost.events += 1
        self.cost.core_s[core, work] += nanoseconds / 1e9

    # ---------------------------------------------------------------- time and faults
    def _run_until(self, end: float) -> None:
        heap, transit = self._heap, self._messages
        while True:
            if transit and transit[0][0] <= heap[0][0]:
                if transit[0][0] > end:
                    return
                self.now, actor, event = transit.popleft()
                actor.step(event)
            elif heap[0][0] > end:
                return
            else:
                self.now, _, callback, arguments = heappop(heap)
                callback(*arguments)

    def _kill(self, peer: m.Peer) -> None:
        self.actors.pop(peer).is_dead = True
        exited = m.ProcessExited(peer, "killed", [], 0, cause=m.ExitCause.EXTERNAL)
        self.schedule(DETECTION_S, self.actors[CONDUCTOR].step, MessageReceived(LAUNCHER, exited))
        self.schedule(RESTART_S, _Worker, self, m.Peer(peer.name, peer.incarnation + 1))


def main(words: Sequence[str]) -> None:
    """Run a shard and print what it took."""
    streams, workers, seconds, dying, seed = words
    load = ShardLoad(int(streams), int(workers), float(seconds), int(dying))
    sys.stdout.write(Shard(load, int(seed)).run().to_json())


if __name__ == "__main__":
    main(sys.argv[1:])
