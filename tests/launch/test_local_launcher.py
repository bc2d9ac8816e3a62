"""Local launcher with stub processes: start, restart, standby, failed starts, shutdown."""

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

from mstar.config import RuntimeConfig
from mstar.errors import PlacementError
from mstar.launch import launcher as launcher_module
from mstar.launch.child import RestartStatus
from mstar.launch.local_launcher import LocalLauncher
from mstar.launch.run_directory import remove_stale_directories
from mstar.launch.supervisor import LaunchError
from mstar.wire.messages import ExitCause, Kill, Peer, ProcessExited, Register, StartWorker, StopWorker, Suspect
from tests.launch.launcher_harness import Probe, StubLauncher, group_pids, is_running, make_placement, wait_until
from tests.machine_share import MachineShare, TimeLimit

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def run_root(tmp_path, monkeypatch):
    """Separate run directories per test, and no delay of the standby."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("mstar.launch.standby.STANDBY_DELAY_S", 0.0)
    return tmp_path


@pytest.fixture
def launch():
    """Factory of launchers, which are stopped after the test."""
    launchers = []

    def make(*workers, standby=False, **failpoints):
        local = StubLauncher(
            {"m": "none.py"}, make_placement(*workers), options=RuntimeConfig(failpoints=failpoints), standby=standby
        )
        launchers.append(local)
        return local

    yield make
    for local in launchers:
        local.stop(drain_timeout_s=0)


def test_start_and_stop_leak_nothing(launch, run_root):
    fds, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    local, progress = launch("a", "b", standby=True), []
    local.start(progress.append)
    assert sorted(progress) == ["a is up", "b is up", "conductor is up"]
    assert set(local.health().values()) == {"up"}
    assert stat.S_IMODE(local.directory.stat().st_mode) == 0o700
    wait_until(lambda: "standby" in local.stats()["processes"])
    pids = local.stats()["processes"]
    assert set(pids) == {"conductor", "a", "b", "standby"}
    assert all(os.getpgid(pid) == pid for pid in pids.values())
    for process in (Path(f"/proc/{pid}") for pid in pids.values()):
        assert local.key not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        assert "/dev/shm" not in (process / "maps").read_text(), "no named shared memory"
    local.stop()
    assert not any(map(is_running, pids.values()))
    assert set(os.listdir("/proc/self/fd")) == fds
    assert threading.active_count() == threads
    assert os.listdir(run_root) == []


def test_exits_are_reported_and_processes_restarted(launch):
    local, probe = launch("a"), Probe()
    local.start()
    local.add_frontend(probe)
    with pytest.raises(LaunchError, match="the name `a` is used by another process\n  fix: "):
        local.add_frontend(Probe("a"))
    local.actor_loop.call_soon(lambda: local.actor_loop.send(probe.peer, local.conductors["m"], Register()))

    os.kill(local.pid("a"), signal.SIGKILL)
    sender, exited = probe.next_message(ProcessExited)
    assert (sender, exited) == (
        Peer("conductor", 0),
        ProcessExited(Peer("a", 0), "killed by SIGKILL", [Suspect("r1", 7, 2)]),
    )
    wait_until(lambda: local.health()["a"] == "up")

    os.kill(local.pid("conductor"), signal.SIGKILL)
    sender, hello = probe.next_message(Register)
    assert (sender, hello) == (Peer("conductor", 1), Register(("a.1", "launcher.0", "probe.0")))
    assert local.conductors["m"] == Peer("conductor", 1)
    assert local.stats()["restarts"] == 2

    # Kill applies to the named incarnation only.
    wait_until(lambda: local.health() == {"conductor": "up", "a": "up"})
    for kill in (Kill(Peer("a", 0), "outdated"), Kill(Peer("a", 1), "no heartbeat for 2 s")):
        local.actor_loop.call_soon(lambda kill=kill: local.actor_loop.send(probe.peer, local.conductors["m"], kill))
    exited = probe.next_message(ProcessExited)[1]
    assert (exited.peer, exited.reason, exited.failed_starts) == (Peer("a", 1), "no heartbeat for 2 s", 0)
    assert exited.cause is ExitCause.CRASH, "no progress can be the fault of a request; the SIGKILL above is not"
    assert exited.suspects == [Suspect("r1", 7, 2)]
    assert [reason for _, _, reason in local.recent_exits] == [
        "killed by SIGKILL",
        "killed by SIGKILL",
        "no heartbeat for 2 s",
    ]
    assert not list(local.directory.glob("a.1*")), "files of a dead incarnation are removed"


def test_a_standby_replaces_a_dead_process(launch):
    local = launch("a", standby=True)
    local.start()
    wait_until(lambda: "standby" in local.stats()["processes"])
    first = local.pid("standby")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: local.stats()["processes"].get("standby", first) != first)
    second = local.pid("standby")
    os.kill(local.pid("a"), signal.SIGKILL)
    wait_until(lambda: local.stats()["processes"].get("a") == second and local.health()["a"] == "up")


def test_a_worker_with_a_gpu_sees_no_other_one_and_is_not_replaced_by_the_standby(run_root):
    text = '[place]\nlm = ["a", "b", "c"]\n[workers.a]\ndevice = "cuda:1"\n[workers.b]\ndevice = "cuda"'
    with StubLauncher({"m": "none.py"}, {"m": text}, gpus=["3", "GPU-8a"]) as local:

        def visible(name):
            variables = Path(f"/proc/{local.pid(name)}/environ").read_text().split("\0")
            return [one for one in variables if one.startswith("CUDA_VISIBLE_DEVICES=")]

        assert visible("a") == ["CUDA_VISIBLE_DEVICES=GPU-8a"]
        assert visible("b") == ["CUDA_VISIBLE_DEVICES=3"]
        assert visible("c") == visible("conductor")
        wait_until(lambda: "standby" in local.stats()["processes"])
        first, standby = local.pid("a"), local.pid("standby")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: local.stats()["processes"].get("a", first) != first and local.health()["a"] == "up")
        assert local.pid("a") != standby
        assert visible("a") == ["CUDA_VISIBLE_DEVICES=GPU-8a"]
        names = {name: local._supervisor.children[name].process._config.cuda_device for name in "abc"}
        assert names == {"a": "cuda:1", "b": "cuda:0", "c": ""}


def test_a_gpu_that_is_not_visible_is_refused(run_root):
    text = '[place]\nlm = "a"\n[workers.a]\ndevice = "cuda:1"'
    with pytest.raises(PlacementError, match="the GPU cuda:1 is not visible; visible: `cuda:0`"):
        StubLauncher({"m": "none.py"}, {"m": text}, gpus=["0"])


def test_a_held_standby_starts_when_it_is_released(launch):
    local = launch("a", standby=True)
    local.start(hold_standby=True)
    time.sleep(0.5)
    assert "standby" not in local.stats()["processes"]
    os.kill(local.pid("a"), signal.SIGKILL)  # a process that dies meanwhile is restarted all the same
    wait_until(lambda: local.stats()["restarts"] == 1 and local.health()["a"] == "up")
    local.release_standby()
    wait_until(lambda: "standby" in local.stats()["processes"])


def test_the_children_of_a_dead_process_are_killed(launch):
    local = launch("a", a="starts others")
    local.start()
    pid = local.pid("a")
    assert len(group_pids(pid)) == 2
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not group_pids(pid))


@pytest.mark.parametrize("name", ["a", "conductor"])
def test_a_failed_start_is_reported_and_stops_the_launcher(launch, run_root, name):
    local, start = launch("a", "b", **{name: "dies"}), time.monotonic()
    with pytest.raises(LaunchError, match=f"{name} exited with status 1 .*\n    no weights here\n  fix: "):
        local.start()
    assert time.monotonic() - start < 5
    assert os.listdir(run_root) == []
    assert local.stats()["processes"] == {}


def test_a_missing_executable_is_reported(launch):
    local = launch("a")
    local.command = ("/nowhere/python",)
    with pytest.raises(LaunchError, match=r"could not start: .*No such file"):
        local.start()


def test_a_start_times_out(launch):
    local = launch("a", a="hangs")
    with pytest.raises(LaunchError, match=r"not ready after 0.3 s; not up: .*`a`\n  fix: "):
        local.start(ready_timeout_s=0.3)


@pytest.mark.slow
def test_a_process_that_fails_to_start_is_retried_until_it_starts(launch, run_root, caplog, monkeypatch):
    monkeypatch.setattr("mstar.launch.restart_backoff.MAX_START_BACKOFF_S", 0.5)
    monkeypatch.setattr("mstar.launch.restart_backoff.MIN_UPTIME_S", 0.0)
    caplog.set_level("INFO", "mstar.launch")
    cause = run_root / "broken"
    cause.touch()
    local, probe = launch("a", "b", a=f"dies while {cause}"), Probe()
    local.start()
    local.add_frontend(probe)
    local.actor_loop.call_soon(lambda: local.actor_loop.send(probe.peer, local.conductors["m"], Register()))
    os.kill(local.pid("a"), signal.SIGKILL)
    wait_until(lambda: len(local.recent_exits) >= 8, 60)
    times = [when for when, _, _ in local.recent_exits]
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert all(wait > 0.8 * delay for wait, delay in zip(waits, (0, 0, 0.1, 0.2, 0.4, 0.5, 0.5), strict=False))
    exits = [probe.next_message(ProcessExited)[1] for _ in range(8)]
    assert [exited.failed_starts for exited in exits] == list(range(8))
    assert 0.4 <= exits[7].next_start_in_s <= 0.6
    wait_until(lambda: local.health()["a"] == "waiting to be restarted")
    status = local.status.restarts()["a"]
    assert (status.failed_starts >= 7, status.reason) == (True, "exited with status 1")
    assert 0 <= status.next_start_in_s <= 0.6

    cause.unlink()
    wait_until(lambda: local.health() == {"conductor": "up", "a": "up", "b": "up"}, 60)
    restarts = local.status.restarts()["a"].restarts
    assert local.status.restarts()["a"] == RestartStatus(restarts, 0, 0.0, "")
    lines = [record.getMessage() for record in caplog.records]
    assert "worker a failed to start (attempt 1, exited with status 1), next attempt now" in lines
    assert any(
        line.startswith("worker a failed to start (attempt 6, exited with status 1), next attempt in 0.")
        for line in lines
    )
    assert "worker a is ready again" in lines  # the conductor of this test answers no probes, so it may restart too


@pytest.mark.slow
def test_commands_retry_or_stop_a_process_that_fails_to_start(launch, run_root, monkeypatch):
    monkeypatch.setattr("mstar.launch.restart_backoff.INITIAL_BACKOFF_S", 1000.0)
    monkeypatch.setattr("mstar.launch.restart_backoff.MAX_START_BACKOFF_S", 1000.0)
    monkeypatch.setattr("mstar.launch.restart_backoff.MIN_UPTIME_S", 0.0)
    cause = run_root / "broken"
    cause.touch()
    local, probe = launch("a", a=f"dies while {cause}"), Probe()
    local.start()
    local.add_frontend(probe)

    def send(message):
        local.actor_loop.call_soon(lambda: local.actor_loop.send(probe.peer, local.conductors["m"], message))

    send(Register())
    os.kill(local.pid("a"), signal.SIGKILL)
    for number in range(3):
        assert probe.next_message(ProcessExited)[1].failed_starts == number

    # A new conductor learns which workers fail.
    os.kill(local.pid("conductor"), signal.SIGKILL)
    report = probe.next_message(ProcessExited)[1]
    assert (report.peer, report.failed_starts) == (Peer("a", 2), 2)
    assert report.next_start_in_s > 500

    send(StartWorker("a"))  # no effect: the next attempt is scheduled
    send(StartWorker("a", skip_backoff=True))
    assert probe.next_message(ProcessExited)[1].failed_starts == 3
    send(StopWorker(Peer("a", 1)))  # a conductor knows an earlier incarnation
    wait_until(lambda: local.health()["a"] == "not needed now")
    cause.unlink()
    send(StartWorker("a"))
    wait_until(lambda: local.health()["a"] == "up")

    # SIGHUP retries at once, too.
    cause.touch()
    os.kill(local.pid("a"), signal.SIGKILL)
    wait_until(lambda: local.status.restarts()["a"].failed_starts == 1)
    cause.unlink()
    local.reload_weights()
    wait_until(lambda: local.health()["a"] == "up")


@pytest.mark.slow
def test_a_process_that_does_not_stop_is_killed(launch, monkeypatch):
    monkeypatch.setattr(launcher_module, "TERMINATE_TIMEOUT_S", 0.2)
    local = launch("a", conductor="never drained")
    local.start()
    pid = local.pid("a")
    os.kill(pid, signal.SIGSTOP)
    with TimeLimit(1.5, at_least_s=0.5):
        local.stop(drain_timeout_s=0.3)
    assert not is_running(pid)


@pytest.mark.parametrize(
    ("worker", "problem"), [("conductor", "reserved"), ("a/b", "not a valid name"), ("w" * 33, "not a valid name")]
)
def test_invalid_worker_names_are_rejected(worker, problem):
    with pytest.raises(LaunchError, match=f"worker `{worker}`, which is {problem}\n  fix: "):
        LocalLauncher({"m": "none.py"}, make_placement(worker))


def test_placements_are_read_before_anything_starts(tmp_path):
    with pytest.raises(LaunchError, match="not TOML"):
        LocalLauncher({"m": "none.py"}, {"m": "placement.toml"})
    with pytest.raises(PlacementError, match="cannot be read"):
        LocalLauncher({"m": "none.py"}, {"m": tmp_path / "none.toml"})


def test_a_real_model_is_started_and_restarted():
    with LocalLauncher({"noop": str(ROOT / "examples" / "noop.py")}) as local:
        assert local.health() == {"conductor": "up", "local": "up"}
        os.kill(local.pid("local"), signal.SIGKILL)
        wait_until(lambda: local.health()["local"] == "up" and local.stats()["restarts"] == 1)
        assert [str(peer) for _, peer, _ in local.recent_exits] == ["local.0"]


def test_a_killed_launcher_leaves_nothing(run_root):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.launch.killable_launcher"], cwd=ROOT, env=environment, stdout=-1
    ) as launcher:
        started = json.loads(launcher.stdout.readline())
        assert len(started["pids"]) == 4
        launcher.kill()
    wait_until(lambda: not any(map(is_running, started["pids"].values())), 3.0)
    assert [str(path) for path in run_root.iterdir()] == [started["directory"]]
    remove_stale_directories(run_root)  # as the next launcher does
    assert os.listdir(run_root) == []


@pytest.mark.slow
def test_twenty_exits_are_seen_and_restarted_in_time(launch):
    local = launch("a", "b", standby=True)
    local.start()
    seen, back, machine = [], [], MachineShare()
    for trial in range(20):
        name = ("a", "b", "conductor")[trial % 3]
        wait_until(lambda: "standby" in local.stats()["processes"])
        wait_until(
            lambda: "pipe_read" in Path(f"/proc/{local.pid('standby')}/wchan").read_text()
        )  # all imports are done
        time.sleep(0.4)  # above MIN_UPTIME_S on average: no backoff
        old, killed = local.pid(name), time.monotonic()
        os.kill(old, signal.SIGKILL)
        wait_until(
            lambda name=name, old=old: local.stats()["processes"].get(name, old) != old and local.health()[name] == "up"
        )
        seen.append(local.recent_exits[-1][0] - killed)
        back.append(time.monotonic() - killed)
    assert sorted(seen)[17] * machine.share < 0.05  # 90th percentile: the cores are shared
    assert sorted(back)[17] * machine.share < 0.5
