"""Workers that rest until they are wanted, are ended when nobody needs them, and are replaced by a new edition."""

import os
import signal

import pytest

from mstar.config import Options
from mstar.launch import supervisor as supervisor_module
from mstar.wire.messages import Gone, Hello, Peer, Renew, Renewed, Retire, Suspect, Wanted
from tests.launch.parts import LocalStandIns, Probe, lives, until

PLACED = {"m": '[place]\nlm = { workers = ["a", "b"], least = 1 }'}


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """A launcher, a front end that its conductor knows, and a way to have the conductor say something."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    started = []

    def start(**failpoints):
        local = LocalStandIns({"m": "none.py"}, PLACED, options=Options(failpoints=failpoints), spare=False)
        started.append(local)
        local.start()
        probe = Probe()
        local.add(probe)

        def say(message):
            local.node.call(lambda: local.node.send(probe.peer, local.conductors["m"], message))

        say(Hello())
        return local, probe, say

    yield start
    for local in started:
        local.stop(grace_s=0)


def test_a_worker_rests_until_it_is_wanted_and_again_when_it_is_not(launched):
    local, probe, say = launched()
    assert local.health() == {"conductor": "up", "a": "up", "b": "not needed now"}
    assert [peer.name for peer in local.peers()] == ["conductor", "a"]

    say(Wanted("b"))
    say(Wanted("b"))
    say(Wanted("nobody"))
    until(lambda: local.health()["b"] == "up")
    assert set(local.peers()) == {Peer("conductor", 0), Peer("a", 0), Peer("b", 0)}

    pid = local.pid("b")
    say(Retire(Peer("b", 7)))  # another life
    say(Retire(Peer("b", 0)))
    assert probe.hears(Gone)[1] == Gone(Peer("b", 0), "not needed now", [Suspect("r1", 7, 2)])
    assert not lives(pid)
    assert local.health()["b"] == "not needed now"

    say(Wanted("b"))
    until(lambda: local.health()["b"] == "up")
    assert Peer("b", 1) in local.peers()
    os.kill(local.pid("b"), signal.SIGKILL)
    assert probe.hears(Gone)[1].peer == Peer("b", 1)
    until(lambda: Peer("b", 2) in local.peers())  # as long as it is wanted it is started again


def test_one_that_is_wanted_again_while_it_ends_comes_back(launched, monkeypatch):
    monkeypatch.setattr(supervisor_module, "RETIRE_S", 0.3)
    local, probe, say = launched()
    os.kill(local.pid("a"), signal.SIGSTOP)  # it does not hear that it is to end, and is killed in the end
    say(Retire(Peer("a", 0)))
    say(Wanted("a"))
    assert probe.hears(Gone)[1].peer == Peer("a", 0)
    until(lambda: local.health()["a"] == "up")
    assert Peer("a", 1) in local.peers()


def test_a_new_conductor_finds_those_that_run_from_the_start(launched):
    local, probe, say = launched()
    say(Retire(Peer("a", 0)))
    assert probe.hears(Gone)[1].peer == Peer("a", 0)
    assert local.health()["a"] == "not needed now"
    os.kill(local.pid("conductor"), signal.SIGKILL)
    until(lambda: local.health() == {"conductor": "up", "a": "up", "b": "not needed now"})
    assert {Peer("conductor", 1), Peer("a", 1)} <= set(local.peers())


def test_one_that_ends_while_the_conductor_does_comes_back(launched, monkeypatch):
    monkeypatch.setattr(supervisor_module, "RETIRE_S", 1.0)
    local, _, say = launched()
    os.kill(local.pid("a"), signal.SIGSTOP)  # it does not hear that it is to end
    say(Retire(Peer("a", 0)))
    until(lambda: not local._supervisor.children["a"].is_wanted)
    os.kill(local.pid("conductor"), signal.SIGKILL)
    until(lambda: Peer("a", 1) in local.peers() and local.health()["a"] == "up")


def test_a_new_edition_is_told_until_everybody_has_it(launched):
    local, probe, say = launched()
    renewed = local.renew()
    assert probe.hears(Renew)[1] == Renew(1)
    say(Renewed(0))  # of an older update
    os.kill(local.pid("conductor"), signal.SIGKILL)
    sender, again = probe.hears(Renew)
    assert (sender, again) == (Peer("conductor", 1), Renew(1))
    assert not renewed.is_set()
    say(Renewed(1))
    assert renewed.wait(5)


def test_renewals_come_one_after_the_other(launched):
    local, probe, say = launched()
    renewed = local.renew()
    assert probe.hears(Renew)[1] == Renew(1)
    for _ in range(2):
        assert local.renew() is renewed
    say(Renewed(1))
    assert probe.hears(Renew)[1] == Renew(2)
    assert not renewed.is_set()
    say(Renewed(2))
    assert renewed.wait(5)
