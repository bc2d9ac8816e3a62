"""Workers that rest until they are wanted, are ended when nobody needs them, and are replaced by a new edition."""

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
    """A launcher, a front end that its conductor knows, and a way to have the conductor say something."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    started = []

    def start(**failpoints):
        local = StubLauncher({"m": "none.py"}, PLACEMENTS, options=RuntimeConfig(failpoints=failpoints), standby=False)
        started.append(local)
        local.start()
        probe = Probe()
        local.add_frontend(probe)

        def say(message):
            local.actor_loop.call_soon(lambda: local.actor_loop.send(probe.peer, local.conductors["m"], message))

        say(Register())
        return local, probe, say

    yield start
    for local in started:
        local.stop(drain_timeout_s=0)


def test_a_worker_is_started_and_stopped_on_request(launched):
    local, probe, say = launched()
    assert local.health() == {"conductor": "up", "a": "up", "b": "not needed now"}
    assert [peer.name for peer in local.peers()] == ["conductor", "a"]

    say(StartWorker("b"))
    say(StartWorker("b"))
    say(StartWorker("nobody"))
    wait_until(lambda: local.health()["b"] == "up")
    assert set(local.peers()) == {Peer("conductor", 0), Peer("a", 0), Peer("b", 0)}

    pid = local.pid("b")
    say(StopWorker(Peer("b", 7)))  # another life
    say(StopWorker(Peer("b", 0)))
    assert probe.next_message(ProcessExited)[1] == ProcessExited(Peer("b", 0), "not needed now", [Suspect("r1", 7, 2)])
    assert not is_running(pid)
    assert local.health()["b"] == "not needed now"

    say(StartWorker("b"))
    wait_until(lambda: local.health()["b"] == "up")
    assert Peer("b", 1) in local.peers()
    os.kill(local.pid("b"), signal.SIGKILL)
    assert probe.next_message(ProcessExited)[1].peer == Peer("b", 1)
    wait_until(lambda: Peer("b", 2) in local.peers())  # as long as it is wanted it is started again


def test_a_worker_that_is_needed_while_it_stops_is_started_again(launched, monkeypatch):
    monkeypatch.setattr(supervisor_module, "STOP_TIMEOUT_S", 0.3)
    local, probe, say = launched()
    os.kill(local.pid("a"), signal.SIGSTOP)  # it does not hear that it is to end, and is killed in the end
    say(StopWorker(Peer("a", 0)))
    say(StartWorker("a"))
    assert probe.next_message(ProcessExited)[1].peer == Peer("a", 0)
    wait_until(lambda: local.health()["a"] == "up")
    assert Peer("a", 1) in local.peers()


def test_a_new_conductor_finds_those_that_run_from_the_start(launched):
    local, probe, say = launched()
    say(StopWorker(Peer("a", 0)))
    assert probe.next_message(ProcessExited)[1].peer == Peer("a", 0)
    assert local.health()["a"] == "not needed now"
    os.kill(local.pid("conductor"), signal.SIGKILL)
    wait_until(lambda: local.health() == {"conductor": "up", "a": "up", "b": "not needed now"})
    assert {Peer("conductor", 1), Peer("a", 1)} <= set(local.peers())


def test_one_that_ends_while_the_conductor_does_comes_back(launched, monkeypatch):
    monkeypatch.setattr(supervisor_module, "STOP_TIMEOUT_S", 1.0)
    local, _, say = launched()
    os.kill(local.pid("a"), signal.SIGSTOP)  # it does not hear that it is to end
    say(StopWorker(Peer("a", 0)))
    wait_until(lambda: not local._supervisor.children["a"].is_needed)
    os.kill(local.pid("conductor"), signal.SIGKILL)
    wait_until(lambda: Peer("a", 1) in local.peers() and local.health()["a"] == "up")


def test_a_weights_version_is_announced_until_all_workers_have_it(launched):
    local, probe, say = launched()
    renewed = local.reload_weights()
    assert probe.next_message(RollWeights)[1] == RollWeights(1)
    say(WeightsRolled(0))  # of an older update
    os.kill(local.pid("conductor"), signal.SIGKILL)
    sender, again = probe.next_message(RollWeights)
    assert (sender, again) == (Peer("conductor", 1), RollWeights(1))
    assert not renewed.is_set()
    say(WeightsRolled(1))
    assert renewed.wait(5)


def test_rolling_updates_are_sequential(launched):
    local, probe, say = launched()
    renewed = local.reload_weights()
    assert probe.next_message(RollWeights)[1] == RollWeights(1)
    for _ in range(2):
        assert local.reload_weights() is renewed
    say(WeightsRolled(1))
    assert probe.next_message(RollWeights)[1] == RollWeights(2)
    assert not renewed.is_set()
    say(WeightsRolled(2))
    assert renewed.wait(5)
