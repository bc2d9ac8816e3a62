"""Remote process with a scripted Ray actor: start, exit report, retry, and a host that does not answer."""

from concurrent.futures import Future
from signal import SIGKILL
from types import SimpleNamespace

import msgspec
import pytest

from mstar.config import RuntimeConfig, WorkerConfig
from mstar.wire.messages import ExitCause

remote_process = pytest.importorskip("mstar.launch.remote_process")

CONFIG = WorkerConfig(
    name="a",
    incarnation=3,
    directory="/elsewhere",
    ip="10.0.0.1",
    key=bytes(32),
    peers={},
    models={},
    placements={},
    options=RuntimeConfig(),
    conductor="conductor",
    black_box="/elsewhere/a.box",
)


class ScriptedActor:
    """Records calls; the test answers them."""

    def __init__(self):
        self.calls = []
        self.replies = []

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name, arguments):
        self.calls.append((name, *arguments))
        self.replies.append(Future())
        return SimpleNamespace(future=lambda reply=self.replies[-1]: reply)


class Host:
    """A remote process, its actor, its exits, and a clock that tests advance."""

    def __init__(self):
        self.actor, self.exits, self.now = ScriptedActor(), [], 100.0
        self.process = remote_process.RemoteProcess(
            self.actor, lambda function: function(), self.exits.append, lambda: ""
        )
        self.process.configure(CONFIG)

    def answer(self, result=None, error=None):
        """Answer the last call."""
        reply = self.actor.replies[-1]
        reply.set_exception(error) if error else reply.set_result(result)


@pytest.fixture
def host(monkeypatch):
    host = Host()
    monkeypatch.setattr(remote_process, "time", SimpleNamespace(monotonic=lambda: host.now))
    return host


def test_a_process_starts_and_its_exit_is_reported(host):
    assert host.actor.calls == [("start", msgspec.msgpack.encode(CONFIG))]
    host.answer((17, "10.0.0.2"))
    assert (host.process.pid, host.process.host) == (17, "10.0.0.2")
    assert host.actor.calls[-1] == ("wait_exit", 3, remote_process.WATCH_TIMEOUT_S)
    host.answer(None)  # it still runs
    assert host.actor.calls[-1] == ("wait_exit", 3, remote_process.WATCH_TIMEOUT_S)
    report = remote_process.ExitReport("killed by SIGSEGV", cause=ExitCause.CRASH)
    host.answer(msgspec.msgpack.encode(report))
    assert host.exits == [host.process]
    assert (host.process.exit_reason(), host.process.exit_cause()) == ("killed by SIGSEGV", ExitCause.CRASH)


def test_a_killed_process_is_unreachable_after_a_while_without_an_exit_report(host):
    host.answer((17, "10.0.0.2"))
    host.now += 60.0
    assert not host.process.is_unreachable(), "it was not killed"
    host.process.send_signal(SIGKILL)
    assert host.actor.calls[-1] == ("send_signal", 3, SIGKILL)
    host.now += remote_process.UNREACHABLE_AFTER_S - 0.1
    host.process.send_signal(SIGKILL)
    assert not host.process.is_unreachable()
    host.now += 0.2
    assert host.process.is_unreachable(), "the time counts from the first SIGKILL"


def test_a_failed_call_is_retried_while_the_actor_is_unavailable(host):
    host.answer(error=remote_process.ActorUnavailableError("no answer", None))
    assert host.process.pending_reason() == "its host does not answer"
    host.process.tick(host.now)
    assert len(host.actor.calls) == 1
    host.process.tick(host.now + remote_process.RETRY_INTERVAL_S)
    assert [call[0] for call in host.actor.calls] == ["start", "start"]
    assert host.exits == []


def test_a_process_whose_actor_stays_unavailable_is_unreachable(host):
    host.answer((17, "10.0.0.2"))
    unavailable = remote_process.ActorUnavailableError("no answer", None)
    for _ in range(2):
        host.answer(error=unavailable)
        host.now += remote_process.UNAVAILABLE_TIMEOUT_S - 0.1
        assert not host.process.is_unreachable()
        host.process.tick(host.now)
        host.answer(None)  # the host answers again
        host.now += 60.0
        assert not host.process.is_unreachable()
    host.answer(error=unavailable)
    host.now += remote_process.UNAVAILABLE_TIMEOUT_S + 0.1
    assert host.process.is_unreachable()


def test_an_actor_that_died_ends_its_process(host):
    host.answer(error=remote_process.RayError("the node died"))
    assert host.process.is_actor_dead
    assert host.process.exit_reason() == "its Ray actor failed: the node died"
    assert host.process.exit_cause() is ExitCause.EXTERNAL
    assert host.exits == [host.process]
