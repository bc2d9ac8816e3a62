"""Reaper: exits are seen at once, and output is forwarded."""

import queue
import signal
import sys
import time

import pytest

from mstar.launch.os_process.oom_kills import OomKills
from mstar.launch.os_process.process import OUTPUT_TAIL_BYTES, Process
from mstar.launch.os_process.reaper import Reaper
from tests.machine_share import MachineShare


@pytest.fixture
def reaper():
    """Start commands under a reaper; exited processes are queued with the time."""
    exits, processes = queue.SimpleQueue(), []
    reaper_thread = Reaper(lambda process: exits.put((time.monotonic(), process)))

    def start(*command):
        process = Process(command, OomKills())
        processes.append(process)
        reaper_thread.add(process)
        return process

    yield start, exits
    for process in processes:
        process.send_signal(signal.SIGKILL)
        assert process.exited.wait(5)
    reaper_thread.close()


def test_an_exit_is_seen_within_fifty_milliseconds(reaper):
    start, exits = reaper
    seen, machine = [], MachineShare()
    for _ in range(20):
        process = start("sleep", "60")
        killed = time.monotonic()
        process.send_signal(signal.SIGKILL)
        when, exited = exits.get(timeout=30)
        assert exited is process
        assert exited.exit_reason() == "killed by SIGKILL"
        seen.append(when - killed)
    assert sorted(seen)[17] * machine.share < 0.05  # 90th percentile: the cores are shared


def test_a_signal_while_its_last_output_is_read_does_nothing():
    class Signaled(Process):
        """Gets another signal after it was reaped, before its exit is reported."""

        signals = 0

        def on_output(self, data):
            assert not self.exited.is_set()
            self.send_signal(signal.SIGKILL)
            self.signals += 1

    process = Signaled(("sleep", "60"), OomKills())
    process.send_signal(signal.SIGKILL)
    process.reap()
    assert process.signals
    assert process.exit_reason() == "killed by SIGKILL"


def test_output_is_forwarded_and_its_tail_kept(reaper, capfd):
    start, exits = reaper
    # The pause makes it two chunks.
    first, last = f"print('a' * {2 * OUTPUT_TAIL_BYTES}, flush=True)", "raise SystemExit('last words')"
    start(sys.executable, "-c", f"import time; {first}; time.sleep(0.2); {last}")
    _, exited = exits.get(timeout=30)
    assert exited.exit_reason() == "exited with status 1"
    assert exited.stderr_tail().endswith("a\nlast words")
    assert len(exited.stderr_tail()) < OUTPUT_TAIL_BYTES
    assert capfd.readouterr().err == "a" * 2 * OUTPUT_TAIL_BYTES + "\nlast words\n"


def test_a_process_with_closed_output_is_still_watched(reaper):
    start, exits = reaper
    process = start("sh", "-c", "exec >&- 2>&-; sleep 60")
    time.sleep(0.05)
    assert exits.empty()
    process.send_signal(signal.SIGKILL)
    assert exits.get(timeout=30)[1] is process


def test_configuration_for_an_exited_process_is_dropped(reaper):
    start, exits = reaper
    process = start("true")
    exits.get(timeout=30)
    process.write_stdin(b"config")
    process.send_signal(signal.SIGKILL)
    assert process.exit_reason() == "exited with status 0"


def test_an_exit_by_a_signal_without_a_name_has_a_reason(reaper):
    start, exits = reaper
    process, number = start("sleep", "60"), signal.SIGRTMIN + 5
    process.send_signal(number)
    assert exits.get(timeout=5)[1] is process
    assert process.exit_reason() == f"killed by signal {number}"
