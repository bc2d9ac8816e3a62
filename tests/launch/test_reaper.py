"""Deaths are seen at once, whatever the dead left behind."""

import queue
import signal
import sys
import time

import pytest

from mstar.launch.process import OUTPUT_TAIL_BYTES, Process
from mstar.launch.reaper import Reaper


@pytest.fixture
def reaper():
    """Starts commands under a watch; those that died come out of the queue, with the time."""
    died, processes = queue.SimpleQueue(), []
    watch = Reaper(lambda process: died.put((time.monotonic(), process)))

    def start(*command):
        process = Process(command)
        processes.append(process)
        watch.add(process)
        return process

    yield start, died
    for process in processes:
        process.send_signal(signal.SIGKILL)
        assert process.exited.wait(5)
    watch.close()


def test_an_exit_is_seen_within_fifty_milliseconds(reaper):
    start, died = reaper
    seen = []
    for _ in range(20):
        process = start("sleep", "60")
        killed = time.monotonic()
        process.send_signal(signal.SIGKILL)
        when, dead = died.get(timeout=5)
        assert dead is process
        assert dead.exit_reason() == "ended by SIGKILL"
        seen.append(when - killed)
    assert sorted(seen)[17] < 0.05  # nine in ten: others use the cores too


def test_what_it_wrote_is_kept_and_passed_on(reaper, capfd):
    start, died = reaper
    start(sys.executable, "-c", f"print('a' * {2 * OUTPUT_TAIL_BYTES}); raise SystemExit('last words')")
    _, dead = died.get(timeout=5)
    assert dead.exit_reason() == "ended with status 1"
    assert dead.stderr_tail().endswith("a\nlast words")
    assert len(dead.stderr_tail()) < OUTPUT_TAIL_BYTES
    assert capfd.readouterr().err == "a" * 2 * OUTPUT_TAIL_BYTES + "\nlast words\n"


def test_one_that_closed_its_output_is_still_watched(reaper):
    start, died = reaper
    process = start("sh", "-c", "exec >&- 2>&-; sleep 60")
    time.sleep(0.05)
    assert died.empty()
    process.send_signal(signal.SIGKILL)
    assert died.get(timeout=5)[1] is process


def test_settings_for_dead_processes_are_dropped(reaper):
    start, died = reaper
    process = start("true")
    died.get(timeout=5)
    process.write_stdin(b"settings")
    process.send_signal(signal.SIGKILL)
    assert process.exit_reason() == "ended with status 0"
