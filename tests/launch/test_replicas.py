"""Start, stop and rolling update of workers by the supervisor."""

import os
import signal

import pytest

from mstar.config import RuntimeConfig
from mstar.launch import supervisor as supervisor_module
from mstar.wire.messages import (
    Peer,
    ProcessExited,
    Register,
    RollWeights,
    StartWorker,
    StopWorker,
    Suspect,
    WeightsRolled,
)
from tests.launch.launcher_harness import Probe, StubLauncher, is_running, wait_until

PLACEMENTS = {"m": '[place]\nlm = { workers = ["a", "b"], min_replicas = 1 }'}


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Factory of a launcher, a probe front end, and a function to send messages through the conductor."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    started = []

    def start(**failpoints):
        local = StubLauncher({"m": "none.py"}, PLACEMENTS, options=RuntimeConfig(failpoints=failpoints), standby=False)
        started.append(local)
        local.start()
        probe = Probe()
        local.add_frontend(probe)

        def send(message):
            local.actor_loop.call_soon(lambda: local.actor_loop.send(probe.peer, local.conductors["m"], message))

        send(Register())
        return local, probe, send

    yield start
    for local in started:
        local.stop(drain_timeout_s=0)


def test_a_worker_is_started_and_stopped_on_request(launched):
    local, probe, send = launched()
    assert local.health() == {"conductor": "up", "a": "up", "b": "not needed now"}
    assert [peer.name for peer in local.peers()] == ["conductor", "a"]

    send(StartWorker("b"))
    send(StartWorker("b"))
    send(StartWorker("unknown"))
    wait_until(lambda: local.health()["b"] == "up")
    assert set(local.peers()) == {Peer("conductor", 0), Peer("a", 0), Peer("b", 0)}

    pid = local.pid("b")
    send(StopWorker(Peer("b", 7)))  # another incarnation
    send(StopWorker(Peer("b", 0)))
    assert probe.next_message(ProcessExited)[1] == ProcessExited(Peer("b", 0), "not needed now", [Suspect("r1", 7, 2)])
    assert not is_running(pid)
    assert local.health()["b"] == "not needed now"

    send(StartWorker("b"))
    wait_until(lambda: local.health()["b"] == "up")
    assert Peer("b", 1) in local.peers()
    os.kill(local.pid("b"), signal.SIGKILL)
    assert probe.next_message(ProcessExited)[1].peer == Peer("b", 1)
    wait_until(lambda: Peer("b", 2) in local.peers())  # a needed worker is restarted


def test_a_worker_that_is_needed_while_it_stops_is_started_again(launched, monkeypatch):
    monkeypatch.setattr(supervisor_module, "STOP_TIMEOUT_S", 0.3)
    local, probe, send = launched()
    os.kill(local.pid("a"), signal.SIGSTOP)  # ignores SIGTERM, and is killed later
    send(StopWorker(Peer("a", 0)))
    send(StartWorker("a"))
    assert probe.next_message(ProcessExited)[1].peer == Peer("a", 0)
    wait_until(lambda: local.health()["a"] == "up")
    assert Peer("a", 1) in local.peers()


def test_a_new_conductor_gets_the_initial_workers(launched):
    local, probe, send = launched()
    send(StopWorker(Peer("a", 0)))
    assert probe.next_message(ProcessExited)[1].peer == Peer("a", 0)
    assert local.health()["a"] == "not needed now"
    os.kill(local.pid("conductor"), signal.SIGKILL)
    wait_until(lambda: local.health() == {"conductor": "up", "a": "up", "b": "not needed now"})
    assert {Peer("conductor", 1), Peer("a", 1)} <= set(local.peers())


def test_a_worker_that_stops_while_its_conductor_dies_is_restarted(launched, monkeypatch):
    monkeypatch.setattr(supervisor_module, "STOP_TIMEOUT_S", 1.0)
    local, _, send = launched()
    os.kill(local.pid("a"), signal.SIGSTOP)  # ignores SIGTERM
    send(StopWorker(Peer("a", 0)))
    wait_until(lambda: not local._supervisor.children["a"].is_needed)
    os.kill(local.pid("conductor"), signal.SIGKILL)
    wait_until(lambda: Peer("a", 1) in local.peers() and local.health()["a"] == "up")


def test_a_weights_version_is_announced_until_all_workers_have_it(launched):
    local, probe, send = launched()
    weights_rolled = local.reload_weights()
    assert probe.next_message(RollWeights)[1] == RollWeights(1)
    send(WeightsRolled(0))  # of an older update
    os.kill(local.pid("conductor"), signal.SIGKILL)
    sender, again = probe.next_message(RollWeights)
    assert (sender, again) == (Peer("conductor", 1), RollWeights(1))
    assert not weights_rolled.is_set()
    send(WeightsRolled(1))
    assert weights_rolled.wait(5)


def test_rolling_updates_are_sequential(launched):
    local, probe, send = launched()
    weights_rolled = local.reload_weights()
    assert probe.next_message(RollWeights)[1] == RollWeights(1)
    for _ in range(2):
        assert local.reload_weights() is weights_rolled
    send(WeightsRolled(1))
    assert probe.next_message(RollWeights)[1] == RollWeights(2)
    assert not weights_rolled.is_set()
    send(WeightsRolled(2))
    assert weights_rolled.wait(5)
