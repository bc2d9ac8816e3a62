"""Actor of a worker: which thread processes a report of the engine and sends what follows from it."""

import threading
from types import SimpleNamespace

import pytest

from mstar.wire.messages import Cancel, Peer
from mstar.wire.transport.actor_loop import SLOW_TICKS, ActorLoop
from mstar.worker.actor import MAX_SENT_BY_ENGINE, WorkerActor
from mstar.worker.commands import BatchFinished, ExportFinished, Free, SendMessage
from tests.wire.actors import RecordingActor, run_loop, wait_until

WORKER, OTHER, LAUNCHER = Peer("a", 0), Peer("b", 0), Peer("launcher", 0)
FINISHED = BatchFinished(1, [], 0.1)


class ScriptedCore:
    """A core that answers every report with the same actions."""

    peer, conductor = WORKER, LAUNCHER
    scheduler = SimpleNamespace(fill_wait_s=None)

    def __init__(self, actions):
        self._actions = actions
        self.threads = []

    def step(self, now, event):
        if not isinstance(event, BatchFinished | ExportFinished):
            return []
        self.threads.append(threading.get_ident())
        return self._actions

    def registration(self):
        return Cancel("registration")

    def running_batch(self):
        return None


class RecordingEngine:
    """An engine that records its commands."""

    def __init__(self):
        self.commands = []

    def start(self):
        pass

    def submit(self, commands, *, may_run_inline):
        self.commands += commands
        return []


class RecordingLoop(ActorLoop):
    """An actor loop that records the thread of each message."""

    def __init__(self):
        super().__init__(None, b"", None)
        self.sender_threads = []

    def send(self, sender, to, message):
        if to == OTHER:
            self.sender_threads.append(threading.get_ident())
        super().send(sender, to, message)


@pytest.fixture
def start():
    """Run an actor whose core answers with a number of messages and commands."""
    stops = []

    def start(messages, commands):
        core = ScriptedCore([*[SendMessage(OTHER, Cancel(str(n))) for n in range(messages)], *commands])
        actor_loop, other, engine = RecordingLoop(), RecordingActor("b"), RecordingEngine()
        other.tick_interval = SLOW_TICKS
        actor = WorkerActor(actor_loop, core, dict)
        actor_loop.add(actor)
        actor_loop.add(other)
        actor.attach_engine(engine, LAUNCHER)
        running = run_loop(actor_loop)
        running.__enter__()
        stops.append(running)
        other.wait(lambda: other.ticks)
        return SimpleNamespace(actor=actor, core=core, loop=actor_loop, other=other, engine=engine)

    yield start
    for running in stops:
        running.__exit__(None, None, None)


def report(worker, event):
    """Report an event when the loop is idle: a report to a busy loop is processed there."""
    wait_until(lambda: worker.loop.try_run(lambda: None))
    worker.actor.report(event)
    wait_until(lambda: worker.core.threads)


@pytest.mark.parametrize(
    ("messages", "commands", "is_sent_by_engine"),
    [
        (MAX_SENT_BY_ENGINE, [Free((1,))], True),
        (MAX_SENT_BY_ENGINE + 1, [Free((1,))], False),  # the engine has a next batch to run
        (MAX_SENT_BY_ENGINE + 1, [], True),
    ],
)
def test_the_engine_sends_a_few_messages_itself(start, messages, commands, is_sent_by_engine):
    worker = start(messages, commands)
    report(worker, FINISHED)
    worker.other.wait(lambda: len(worker.other.received) == messages)
    own = threading.get_ident()
    assert worker.core.threads == [own]
    assert worker.engine.commands == commands
    assert {thread == own for thread in worker.loop.sender_threads} == {is_sent_by_engine}
    assert worker.other.received_rids == [str(n) for n in range(messages)]


def test_the_loop_sends_exported_states(start):
    worker = start(1, [])
    report(worker, ExportFinished(1, ValueError()))
    worker.other.wait(lambda: worker.other.received)
    assert threading.get_ident() not in {*worker.core.threads, *worker.loop.sender_threads}
