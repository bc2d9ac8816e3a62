"""Start, stop and rolling update of workers by the supervisor."""

import os
import signal

import pytest

from mstar.config import RuntimeConfig
from mstar.launch import supervisor as supervisor_module
from mstar.launch.child import RestartStatus
from mstar.launch.weights_rollout import RolloutStatus
from mstar.wire.messages import (
    Peer,
    ProcessExited,
    Register,
    RolloutFailed,
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

    def start(*, standby=False, **failpoints):
        options = RuntimeConfig(failpoints=failpoints)
        local = StubLauncher({"m": "none.py"}, PLACEMENTS, options=options, standby=standby)
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


# ---------------------------------------------------------------- successors
OLD, NEW = Peer("a", 0), Peer("a+", 0)
"""A worker, and its successor."""


def start_successor(local, send):
    send(StartWorker("a", beside=OLD))
    wait_until(lambda: "a (old)" in local.stats()["processes"])


def test_a_successor_serves_beside_its_worker_and_replaces_it(launched):
    local, probe, send = launched()
    old = local.pid("a")
    start_successor(local, send)
    assert local.pid("a (old)") == old
    assert local.peers() == (OLD, Peer("conductor", 0), NEW), "the worker that drains comes first"
    assert local.health() == {"conductor": "up", "a": "up", "b": "not needed now"}
    new = local.pid("a")
    send(StartWorker("a", beside=OLD))
    send(StartWorker("a"))
    send(StopWorker(OLD))
    assert probe.next_message(ProcessExited)[1].peer == OLD
    wait_until(lambda: not is_running(old))
    assert local.peers() == (Peer("conductor", 0), NEW)
    assert local.pid("a") == new
    assert local.status.restarts()["a"] == RestartStatus(1, 0, 0.0, "")

    send(StartWorker("a", beside=NEW))
    wait_until(lambda: Peer("a", 1) in local.peers())
    send(StopWorker(NEW))
    wait_until(lambda: local.peers() == (Peer("conductor", 0), Peer("a", 1)))


def test_a_successor_leaves_the_standby_to_workers_that_die(launched):
    local, _, send = launched(standby=True)
    wait_until(lambda: "standby" in local.stats()["processes"])
    standby = local.pid("standby")
    start_successor(local, send)
    assert local.pid("standby") == standby
    send(StopWorker(OLD))
    wait_until(lambda: local.peers() == (Peer("conductor", 0), NEW))
    os.kill(local.pid("a"), signal.SIGKILL)
    wait_until(lambda: Peer("a+", 1) in local.peers() and local.health()["a"] == "up")
    assert local.pid("a") == standby


def test_a_front_end_gets_messages_of_a_worker_and_of_its_successor(launched):
    local, probe, send = launched()

    def worker_answers(peer):
        local.actor_loop.call_soon(lambda: local.actor_loop.send(probe.peer, peer, Register()))
        sender, _ = probe.next_message(Register)
        return sender == peer

    wait_until(lambda: worker_answers(OLD))  # the registration of the conductor can come first
    start_successor(local, send)
    assert worker_answers(NEW), "both are on the actor loop of the launcher"
    assert worker_answers(OLD)


def test_a_successor_that_fails_to_start_leaves_its_worker_alone(launched, tmp_path, caplog):
    (tmp_path / "broken").touch()
    local, probe, send = launched(a=f"dies while {tmp_path / 'broken'}")
    rolled = local.reload_weights()
    old = local.pid("a")
    send(StartWorker("a", beside=OLD))
    for failed_starts in (1, 2):
        exited = probe.next_message(ProcessExited)[1]
        assert (exited.peer.worker, exited.failed_starts) == ("a", failed_starts)
    send(StopWorker(exited.peer))
    send(RolloutFailed(1, 0, "a", "exited with status 1"))
    assert rolled.wait(5)
    status = local.status.rollout()
    assert (status.completed, status.failed, status.is_running) == (0, 1, False)
    assert status.error == "worker a failed to start with the new weights: exited with status 1"
    assert "The old workers keep serving." in caplog.text
    assert local.health()["a"] == "up"
    assert local.pid("a") == old
    wait_until(lambda: "a (successor)" not in local.stats()["processes"])

    (tmp_path / "broken").unlink()
    rolled = local.reload_weights()
    assert probe.next_message(RollWeights)[1] == RollWeights(2), "a version is used once"
    (tmp_path / "broken").touch()
    send(StartWorker("a", beside=OLD))
    assert probe.next_message(ProcessExited)[1].failed_starts == 1, "those of the earlier update do not count"
    send(WeightsRolled(2))
    assert rolled.wait(5)
    assert local.status.rollout() == RolloutStatus(False, 1, 1, "")


@pytest.mark.parametrize("is_loaded", [False, True], ids=["loading", "loaded"])
def test_a_worker_that_dies_while_its_successor_runs_is_replaced_by_it(launched, is_loaded):
    local, probe, send = launched()
    old = local.pid("a")
    send(StartWorker("a", beside=OLD))
    wait_until(lambda: ("a (old)" if is_loaded else "a (successor)") in local.stats()["processes"])
    os.kill(old, signal.SIGKILL)
    assert probe.next_message(ProcessExited)[1].peer == OLD
    wait_until(lambda: local.peers() == (Peer("conductor", 0), NEW) and local.health()["a"] == "up")
    os.kill(local.pid("a"), signal.SIGKILL)
    wait_until(lambda: local.peers() == (Peer("conductor", 0), Peer("a+", 1)) and local.health()["a"] == "up")


def test_a_successor_that_dies_is_restarted_beside_its_worker(launched):
    local, probe, send = launched()
    old = local.pid("a")
    start_successor(local, send)
    os.kill(local.pid("a"), signal.SIGKILL)
    assert probe.next_message(ProcessExited)[1].peer == NEW
    wait_until(lambda: Peer("a+", 1) in local.peers() and "a (old)" in local.stats()["processes"])
    assert local.pid("a (old)") == old


def test_a_worker_that_restarts_meanwhile_gets_no_successor(launched):
    local, probe, send = launched()
    os.kill(local.pid("a"), signal.SIGKILL)
    assert probe.next_message(ProcessExited)[1].peer == OLD
    wait_until(lambda: Peer("a", 1) in local.peers())
    send(StartWorker("a", beside=OLD))
    send(StartWorker("b"))
    wait_until(lambda: local.health()["b"] == "up")
    assert {peer.name for peer in local.peers()} == {"conductor", "a", "b"}


def test_a_new_conductor_gets_a_worker_and_its_successor(launched):
    local, _, send = launched()
    start_successor(local, send)
    os.kill(local.pid("conductor"), signal.SIGKILL)
    wait_until(lambda: local.peers() == (OLD, Peer("conductor", 1), NEW))
    wait_until(lambda: local.health() == {"conductor": "up", "a": "up", "b": "not needed now"})


def test_after_a_rollback_the_old_worker_is_restarted_and_not_its_successor(launched):
    local, probe, send = launched()
    start_successor(local, send)
    send(RolloutFailed(1, 0, "b", "exited with status 1"))
    wait_until(lambda: local._supervisor.children["a+"].is_rolled_back)
    wait_until(lambda: "a (rolled back)" in local.stats()["processes"])
    os.kill(local.pid("a"), signal.SIGKILL)
    assert probe.next_message(ProcessExited)[1].peer == OLD
    wait_until(lambda: {Peer("a", 1), NEW} <= set(local.peers()))
    os.kill(local.pid("conductor"), signal.SIGKILL)
    wait_until(lambda: set(local.peers()) == {Peer("conductor", 1), Peer("a", 1)})
