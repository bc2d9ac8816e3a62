"""The launcher with real processes. They only greet; that is all the launcher knows of what it starts."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from mstar.config import Options
from mstar.errors import PlacementError
from mstar.launch import launcher as launcher_module
from mstar.launch.directory import sweep
from mstar.launch.local import Local
from mstar.launch.supervisor import LaunchError
from mstar.wire.messages import Gone, Hello, Kill, Peer, Suspect
from tests.launch.parts import LocalStandIns, Probe, group, lives, placed, until

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def run_root(tmp_path, monkeypatch):
    """Run directories of their own, so that tests side by side do not see each other's; and spares without delay."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("mstar.launch.supervisor.SPARE_AFTER_S", 0.0)
    return tmp_path


@pytest.fixture
def launch():
    """Makes launchers, and ends them."""
    made = []

    def make(*workers, spare=False, **failpoints):
        local = LocalStandIns({"m": "none.py"}, placed(*workers), options=Options(failpoints=failpoints), spare=spare)
        made.append(local)
        return local

    yield make
    for local in made:
        local.stop(grace_s=0)


def test_all_come_up_and_nothing_is_left(launch, run_root):
    fds, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    local, progress = launch("a", "b", spare=True), []
    local.start(progress.append)
    assert sorted(progress) == ["a is up", "b is up", "conductor is up"]
    assert set(local.health().values()) == {"up"}
    assert stat.S_IMODE(local.directory.stat().st_mode) == 0o700
    until(lambda: "spare" in local.stock()["processes"])
    pids = local.stock()["processes"]
    assert set(pids) == {"conductor", "a", "b", "spare"}
    assert all(os.getpgid(pid) == pid for pid in pids.values())
    for process in (Path(f"/proc/{pid}") for pid in pids.values()):
        assert local.key not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        assert "/dev/shm" not in (process / "maps").read_text(), "nothing that would have to be removed"
    local.stop()
    assert not any(map(lives, pids.values()))
    assert set(os.listdir("/proc/self/fd")) == fds
    assert threading.active_count() == threads
    assert os.listdir(run_root) == []


def test_deaths_are_told_and_made_good(launch):
    local, probe = launch("a"), Probe()
    local.start()
    local.add(probe)
    with pytest.raises(LaunchError, match="`a` is already the name of another process\n  fix: "):
        local.add(Probe("a"))
    local.node.call(lambda: local.node.send(probe.peer, local.conductors["m"], Hello()))

    os.kill(local.pid("a"), signal.SIGKILL)
    sender, gone = probe.hears(Gone)
    assert (sender, gone) == (Peer("conductor", 0), Gone(Peer("a", 0), "ended by SIGKILL", [Suspect("r1", 7, 2)]))
    until(lambda: local.health()["a"] == "up")

    os.kill(local.pid("conductor"), signal.SIGKILL)
    sender, hello = probe.hears(Hello)
    assert (sender, hello) == (Peer("conductor", 1), Hello(("a.1", "launcher.0", "probe.0")))
    assert local.conductors["m"] == Peer("conductor", 1)
    assert local.stock()["restarts"] == 2

    # What the conductor condemns is killed, in the life that it means.
    until(lambda: local.health() == {"conductor": "up", "a": "up"})
    for kill in (Kill(Peer("a", 0), "an old grudge"), Kill(Peer("a", 1), "no beat for 2 s")):
        local.node.call(lambda kill=kill: local.node.send(probe.peer, local.conductors["m"], kill))
    assert probe.hears(Gone)[1] == Gone(Peer("a", 1), "no beat for 2 s", [Suspect("r1", 7, 2)])
    assert [why for _, _, why in local.deaths] == ["ended by SIGKILL", "ended by SIGKILL", "no beat for 2 s"]
    assert not list(local.directory.glob("a.1*")), "nothing of a dead life is kept"


def test_a_spare_takes_the_place_of_the_dead(launch):
    local = launch("a", spare=True)
    local.start()
    until(lambda: "spare" in local.stock()["processes"])
    first = local.pid("spare")
    os.kill(first, signal.SIGKILL)
    until(lambda: local.stock()["processes"].get("spare", first) != first)
    second = local.pid("spare")
    os.kill(local.pid("a"), signal.SIGKILL)
    until(lambda: local.stock()["processes"].get("a") == second and local.health()["a"] == "up")


def test_what_a_dead_child_had_started_dies_too(launch):
    local = launch("a", a="starts others")
    local.start()
    pid = local.pid("a")
    assert len(group(pid)) == 2
    os.kill(pid, signal.SIGKILL)
    until(lambda: not group(pid))


@pytest.mark.parametrize("who", ["a", "conductor"])
def test_a_death_at_the_start_is_reported_and_ends_all(launch, run_root, who):
    local, start = launch("a", "b", **{who: "dies"}), time.monotonic()
    with pytest.raises(LaunchError, match=f"{who} ended with status 1 .*\n    no weights here\n  fix: "):
        local.start()
    assert time.monotonic() - start < 5
    assert os.listdir(run_root) == []
    assert local.stock()["processes"] == {}


def test_what_cannot_be_started_is_reported(launch):
    local = launch("a")
    local.command = ("/nowhere/python",)
    with pytest.raises(LaunchError, match=r"could not be started: .*No such file"):
        local.start()


def test_a_start_that_takes_too_long_is_given_up(launch):
    local = launch("a", a="hangs")
    with pytest.raises(LaunchError, match=r"not ready after 0.3 s; not up: .*`a`\n  fix: "):
        local.start(ready_s=0.3)


@pytest.mark.slow
def test_who_dies_at_every_start_is_given_up(launch):
    local = launch("a", "b", a="dies later")
    local.start()
    os.kill(local.pid("a"), signal.SIGKILL)
    until(lambda: local.health()["a"].startswith("given up"))
    times = [when for when, _, _ in local.deaths]
    assert len(times) == 6, "a good life, and five that ended at the start"
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert all(wait > least for wait, least in zip(waits, (0, 0.1, 0.2, 0.4, 0.8), strict=True))
    assert local.health() == {"conductor": "up", "a": "given up: it died at every start", "b": "up"}


@pytest.mark.slow
def test_who_does_not_end_is_killed_after_a_time(launch, monkeypatch):
    monkeypatch.setattr(launcher_module, "TERM_S", 0.2)
    local = launch("a", conductor="never drained")
    local.start()
    pid = local.pid("a")
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    local.stop(grace_s=0.3)
    assert 0.5 <= time.monotonic() - start < 4
    assert not lives(pid)


@pytest.mark.parametrize(
    ("worker", "why"), [("conductor", "reserved"), ("a/b", "no name of a file"), ("w" * 33, "no name of a file")]
)
def test_worker_names_become_files(worker, why):
    with pytest.raises(LaunchError, match=f"worker `{worker}`, which is {why}\n  fix: "):
        Local({"m": "none.py"}, placed(worker))


def test_placements_are_read_before_anything_starts(tmp_path):
    with pytest.raises(LaunchError, match="not TOML"):
        Local({"m": "none.py"}, {"m": "placement.toml"})
    with pytest.raises(PlacementError, match="cannot be read"):
        Local({"m": "none.py"}, {"m": tmp_path / "none.toml"})


def test_a_real_model_comes_up_and_comes_back():
    with Local({"noop": str(ROOT / "examples" / "noop.py")}) as local:
        assert local.health() == {"conductor": "up", "local": "up"}
        os.kill(local.pid("local"), signal.SIGKILL)
        until(lambda: local.health()["local"] == "up" and local.stock()["restarts"] == 1)
        assert [str(who) for _, who, _ in local.deaths] == ["local.0"]


def test_a_killed_launcher_leaves_nothing(run_root):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.launch.orphans"], cwd=ROOT, env=environment, stdout=-1
    ) as launcher:
        started = json.loads(launcher.stdout.readline())
        assert len(started["pids"]) == 4
        launcher.kill()
    until(lambda: not any(map(lives, started["pids"].values())), 3.0)
    assert [str(path) for path in run_root.iterdir()] == [started["directory"]]
    sweep(run_root)  # as the next launcher does
    assert os.listdir(run_root) == []


@pytest.mark.slow
def test_twenty_deaths_are_seen_and_made_good_in_time(launch):
    local = launch("a", "b", spare=True)
    local.start()
    seen, back = [], []
    for trial in range(20):
        name = ("a", "b", "conductor")[trial % 3]
        until(lambda: "spare" in local.stock()["processes"])
        until(lambda: "pipe_read" in Path(f"/proc/{local.pid('spare')}/wchan").read_text())  # it has imported all
        time.sleep(0.4)  # so that nobody has a short life
        old, killed = local.pid(name), time.monotonic()
        os.kill(old, signal.SIGKILL)
        until(
            lambda name=name, old=old: local.stock()["processes"].get(name, old) != old and local.health()[name] == "up"
        )
        seen.append(local.deaths[-1][0] - killed)
        back.append(time.monotonic() - killed)
    assert sorted(seen)[17] < 0.05  # nine in ten: others use the cores too
    assert sorted(back)[17] < 0.5
