"""A worker core with a small model, and a scripted engine: tests send messages and run batches by hand."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Audio, Component, Latents, Model, State, Stream, View, loop, op, walk, windows
from mstar.engine.jobs import JobDone
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.wire import messages as m
from mstar.worker.commands import Batch, BatchFinished, SendMessage, Tick
from mstar.worker.core import MessageReceived, WorkerCore
from mstar.worker.scheduling.scheduler import BatchLimits

CONDUCTOR, FRONTEND = m.Peer("conductor", 0), m.Peer("frontend", 0)
W0, W1 = m.Peer("w0", 0), m.Peer("w1", 0)


class Memory(State):
    """A state of a component."""


class Lm(Component):
    """Ops that the tests never run: results are scripted."""

    @op
    def inc(self, x: int) -> int: ...

    @op
    def double(self, x: int) -> int: ...

    @op
    def decode(self, codes: list[int]) -> int: ...

    @op
    def tell(self, x: int, memory: Memory) -> int: ...

    @op
    def recall(self, memory: View[Memory]) -> int: ...


AUDIO_RATE = 4
"""Audio values of the harness are single samples, which play for a quarter of a second."""


class Walks(Model):
    """Walks of one call, of two partitions, of a state that moves, of a stream between workers, and of a loop."""

    def __init__(self) -> None:
        self.a = Lm()
        self.b = Lm()

    @walk
    def single(self, x: int) -> Iterator[Latents]:
        y = self.a.inc(x)
        yield Latents(y)
        return y

    @walk
    def split(self, x: int) -> int:
        return self.b.double(self.a.inc(x))

    @walk
    def moved(self, x: int) -> int:
        memory = self.a.state(Memory)
        return self.b.inc(self.a.tell(x, memory)), self.a.recall(memory)

    @walk
    def given(self, x: int, memory: Memory) -> int:
        return self.a.tell(x, memory)

    @walk
    def played(self, x: int) -> Iterator[Audio]:
        codes = Stream("codes")
        s = loop(steps=3, x=x)
        for _ in s:
            s.x = self.a.inc(s.x)
            codes.put(s.x)
        for window in windows(codes, size=1):
            yield Audio(self.b.decode(window), rate=AUDIO_RATE)

    @walk
    def counted(self, x: int) -> Iterator[Latents]:
        s = loop(steps=1000, x=x)
        for _ in s:
            s.x = self.a.inc(s.x)
            yield Latents(s.x)

    @walk
    def stateful(self, x: int) -> int:
        memory = self.a.state(Memory)
        s = loop(steps=2, x=x)
        for _ in s:
            s.x = self.a.tell(s.x, memory)
        return s.x


PLACEMENT = parse_placement({"place": {"a": "w0", "a.recall": "w1", "b": "w1"}})
PLANS = {"m": plan(Walks().graphs(), PLACEMENT)}


class WorkerHarness:
    """One core at a given time; `sent` collects its messages and `commands` those for the engine."""

    def __init__(self, peer: m.Peer = W0, **limits) -> None:
        self.core = WorkerCore(peer, CONDUCTOR, PLANS, ("m.a",), BatchLimits(**limits))
        self.now = 0.0
        self.sent: list[SendMessage] = []
        self.commands = []
        self.receive(m.Heartbeat())

    def step(self, event):
        for action in self.core.step(self.now, event):
            (self.sent if isinstance(action, SendMessage) else self.commands).append(action)

    def receive(self, *messages, sender=CONDUCTOR):
        for message in messages:
            self.step(MessageReceived(sender, message))
        return self

    def tick(self, now):
        self.now = now
        self.step(Tick())

    def start(self, walk_name="single", rid="r", attempt=0, walk_index=0, inputs=None, **fields):
        inputs = {0: m.ValueInput(m.Value(1))} if inputs is None else inputs
        seats = tuple(
            {"w0": W0, "w1": W1}[worker_set.workers[0]] for worker_set in PLANS["m"].walks[walk_name].worker_sets
        )
        return self.receive(
            m.StartWalk(rid, attempt, walk_index, "m", walk_name, seats, inputs, {}, FRONTEND, **fields)
        )

    def finish_batch(self, *results, evicted=(), seconds=0.01, costs=None):
        """Finish the oldest batch; one value, exception or UNFINISHED per job."""
        batch = self.take_command(Batch)
        results = [JobDone((result,)) if isinstance(result, int) else result for result in results]
        self.step(BatchFinished(batch.number, results, seconds, evicted, costs))
        return batch

    def take_command(self, kind):
        """Remove and return the oldest command of a kind."""
        command = next(command for command in self.commands if isinstance(command, kind))
        self.commands.remove(command)
        return command

    def take_sent(self, kind):
        """Remove and return all messages of a kind, as (receiver, message) pairs."""
        messages = [(action.to, action.message) for action in self.sent if isinstance(action.message, kind)]
        self.sent = [action for action in self.sent if not isinstance(action.message, kind)]
        return messages

    def names(self):
        return [type(command).__name__ for command in self.commands]
