"""Share of the machine that tests had: own processes do not count as foreign, others do."""

import subprocess
import sys
import time

import pytest

from tests.machine_share import MIN_SHARE, MachineShare, TimeLimit, foreign_cpu_s, own_cpu_s

SPIN = "import time\nwhile time.process_time() < 0.3: pass"


def test_cpu_time_of_running_and_ended_children_is_own():
    before = own_cpu_s()
    child = subprocess.Popen([sys.executable, "-S", "-c", SPIN + "\nprint(flush=True)\ninput()"], stdin=-1, stdout=-1)
    child.stdout.readline()
    running = own_cpu_s() - before
    child.communicate(b"\n")
    assert running >= 0.25
    assert own_cpu_s() - before >= 0.25


def test_cpu_time_of_a_process_of_another_tree_is_foreign(tmp_path):
    end = tmp_path / "end"
    spin = f"{SPIN}\nopen({str(end)!r}, 'w').close()"
    before = foreign_cpu_s()
    # The shell ends at once: its child belongs to the init process.
    subprocess.run(["setsid", "sh", "-c", f'"$0" -S -c "{spin}" &', sys.executable], check=True)
    while not end.exists():
        time.sleep(0.01)
    assert foreign_cpu_s() - before >= 0.25


@pytest.mark.parametrize(("limit", "at_least"), [(0.01, 0.0), (1.0, 0.5)])
def test_a_time_limit_fails_if_a_block_takes_too_long_or_not_long_enough(limit, at_least):
    with pytest.raises(AssertionError), TimeLimit(limit, at_least_s=at_least):
        time.sleep(0.05)


def test_a_share_is_between_the_minimum_and_one():
    machine = MachineShare()
    time.sleep(0.05)
    assert MIN_SHARE <= machine.share <= 1
