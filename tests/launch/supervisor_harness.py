"""Supervisor without processes: a starter of stub processes, and a loop that records what is sent."""

from pathlib import Path
from threading import Event

from mstar.config import RuntimeConfig
from mstar.launch.child import Child
from mstar.launch.deployment import Deployment
from mstar.launch.supervisor import Supervisor
from mstar.plan.shards import Shard
from mstar.wire.messages import ExitCause, Ready, Register
from mstar.wire.transport.address_book import AddressBook


class StubProcess:
    """Process handle that records its configuration and its signals."""

    pid, host = 1, ""

    def __init__(self):
        self.exited = Event()
        self.config, self.signals = None, []

    def configure(self, config):
        self.config = config

    def send_signal(self, signal_number):
        self.signals.append(signal_number)

    def cpu_seconds(self):
        return 0.0

    def loading_progress(self):
        return None

    def pending_reason(self):
        return ""

    def is_unreachable(self):
        return False

    def exit_reason(self):
        return "exited with status 1"

    def exit_cause(self):
        return ExitCause.CRASH

    def stderr_tail(self):
        return ""

    def crash_suspects(self):
        return []


class ExitingChild(Child):
    """Child whose process exits in another thread, right after it was read."""

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name == "process" and value is not None:
            self.process = None
        return value


class StubStarter:
    def start(self, name):
        return StubProcess()

    def tick(self, now):
        pass

    def release(self, name):
        pass

    def close(self):
        pass


class StubActorLoop:
    def __init__(self):
        self.sent, self.next_ticks = [], []

    def send(self, sender, peer, message):
        self.sent.append((peer, message))

    def forget(self, peer):
        pass

    def tick_within(self, peer, seconds):
        self.next_ticks.append(seconds)

    def call_soon(self, callback):
        callback()


class SupervisorHarness:
    """A supervisor of conductors, each with a model of its name and some workers, at a time that the test sets."""

    def __init__(self, frontends=None, **workers):
        self.now = 100.0
        self.loop = StubActorLoop()
        deployment = Deployment(
            directory=Path(),
            key=b"",
            models=dict.fromkeys(workers, "none.py"),
            placements=dict.fromkeys(workers, ""),
            options=RuntimeConfig(),
            shards={name: Shard((name,), tuple(names), tuple(names)) for name, names in workers.items()},
            has_standby=False,
            has_successors=True,
        )
        self.supervisor = Supervisor(self.loop, deployment, AddressBook(Path()), lambda _: StubStarter(), frontends)
        self.children = self.supervisor.children
        self.tick()
        for name, names in workers.items():
            for each in (*names, name):
                self.up(each)
            self.supervisor.receive(self.now, self.children[name].peer, Ready())
        self.sent(object)

    def tick(self, seconds=0.0):
        self.now += seconds
        self.supervisor.tick(self.now)

    def up(self, name):
        """Register the current process of a child."""
        self.receive(name, Register())

    def receive(self, name, message):
        """Deliver a message of a child."""
        self.supervisor.receive(self.now, self.children[name].peer, message)

    def exit(self, name):
        """Let the process of a child exit. It restarts at once if it is due."""
        child = self.children[name]
        self.supervisor._on_child_exited(self.now, child, child.kill_reason or child.process.exit_reason())

    def fail_starts(self, name, count):
        """Let a child fail to start some times, without waiting for its backoff."""
        for _ in range(count):
            self.exit(name)
            self.children[name].start_at = self.now
            self.tick()

    def sent(self, kind):
        """Return the messages of a kind that were sent since the last call, with their recipients, and remove them."""
        messages = [(peer, message) for peer, message in self.loop.sent if isinstance(message, kind)]
        self.loop.sent = [sent for sent in self.loop.sent if sent not in messages]
        return messages

    def sent_to(self, name, kind):
        """Return the messages of a kind that were sent to the current process of a child since the last call."""
        return [message for peer, message in self.sent(kind) if peer == self.children[name].peer]
