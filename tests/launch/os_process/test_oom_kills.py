"""Counters of the out-of-memory killer: they tell a kill for lack of memory from one from outside."""

import select
import sys
from pathlib import Path

import pytest

from mstar.launch.os_process.oom_kills import EXIT_TIMEOUT_S, SAMPLE_INTERVAL_S, OomKills
from mstar.launch.os_process.process import Process
from mstar.wire.messages import ExitCause

V2_EVENTS = "sys/fs/cgroup/system.slice/mstar.service/memory.events"
V1_CONTROL = "sys/fs/cgroup/memory/pods/one/memory.oom_control"
VMSTAT = "proc/vmstat"


class Host:
    """The files of a host, and a clock."""

    def __init__(self, root, *files):
        self.root, self.now = root, 100.0
        self.write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/pods/one\n0::/system.slice/mstar.service\n")
        for file in files:
            self.count(file, 3)
        self.kills = OomKills(root, lambda: self.now)

    def write(self, file, text):
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def count(self, file, kills):
        self.write(file, f"oom 9\noom_kill_disable 0\noom_kill {kills}\noom_group_kill 7\n")


def run(command, host):
    """Run a command until it exits."""
    process = Process(command, host.kills)
    assert select.select([process.pidfd], [], [], 30)[0]
    process.reap()
    return process


@pytest.mark.parametrize("file", [V2_EVENTS, V1_CONTROL, "sys/fs/cgroup/memory.events"])
def test_a_kill_that_the_cgroup_counts_is_a_crash(tmp_path, file):
    host = Host(tmp_path, file, VMSTAT)
    assert host.kills.cause_of_kill() is ExitCause.EXTERNAL
    host.count(file, 4)
    host.count(VMSTAT, 4)
    assert [host.kills.cause_of_kill() for _ in range(2)] == [ExitCause.CRASH] * 2, "two can be killed at once"


def test_a_kill_that_only_the_host_counts_is_unexplained(tmp_path):
    host = Host(tmp_path, V2_EVENTS, VMSTAT)
    host.count(VMSTAT, 4)
    assert host.kills.cause_of_kill() is ExitCause.UNEXPLAINED


def test_a_kill_on_a_host_without_counters_is_unexplained(tmp_path):
    assert Host(tmp_path).kills.cause_of_kill() is ExitCause.UNEXPLAINED


@pytest.mark.parametrize("file", [V2_EVENTS, VMSTAT])
def test_one_counter_that_does_not_rise_is_enough_for_an_external_kill(tmp_path, file):
    assert Host(tmp_path, file).kills.cause_of_kill() is ExitCause.EXTERNAL


def test_an_earlier_kill_for_lack_of_memory_explains_no_later_one(tmp_path):
    host = Host(tmp_path, V2_EVENTS)
    host.count(V2_EVENTS, 4)
    host.now += SAMPLE_INTERVAL_S
    host.kills.tick()
    host.now += EXIT_TIMEOUT_S - 0.1
    assert host.kills.cause_of_kill() is ExitCause.CRASH, "a process with much memory takes time to exit"
    host.now += 0.2
    assert host.kills.cause_of_kill() is ExitCause.EXTERNAL


@pytest.mark.skipif("oom_kill " not in Path("/proc/vmstat").read_text(), reason="this kernel does not count kills")
def test_the_counters_of_this_machine_are_found():
    assert OomKills().cause_of_kill() is ExitCause.EXTERNAL


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os.abort()", ExitCause.CRASH),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ExitCause.CRASH),
        ("raise SystemExit(0)", ExitCause.CRASH),
        ("raise SystemExit(3)", ExitCause.CRASH),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", ExitCause.EXTERNAL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGHUP)", ExitCause.EXTERNAL),
    ],
)
def test_the_cause_follows_from_the_exit(tmp_path, code, cause):
    assert run([sys.executable, "-c", code], Host(tmp_path, VMSTAT)).exit_cause() is cause


def test_the_cause_of_sigkill_follows_from_the_counters(tmp_path):
    host = Host(tmp_path, V2_EVENTS)
    for kills, cause in ((3, ExitCause.EXTERNAL), (4, ExitCause.CRASH)):
        host.count(V2_EVENTS, kills)
        assert run(["sh", "-c", "kill -KILL $$"], host).exit_cause() is cause
