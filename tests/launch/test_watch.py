"""Deaths are seen at once, whatever the dead left behind."""

import queue
import signal
import sys
import time

import pytest

from mstar.launch.process import TAIL_BYTES, Process
from mstar.launch.watch import Watch


@pytest.fixture
def watched():
    """Starts commands under a watch; those that died come out of the queue, with the time."""
    died, processes = queue.SimpleQueue(), []
    watch = Watch(lambda process: died.put((time.monotonic(), process)))

    def start(*command):
        process = Process(command)
        processes.append(process)
        watch.add(process)
        return process

    yield start, died
    for process in processes:
        process.send(signal.SIGKILL)
        assert process.ended.wait(5)
    watch.close()


def test_a_death_is_seen_within_fifty_milliseconds(watched):
    start, died = watched
    seen = []
    for _ in range(20):
        process = start("sleep", "60")
        killed = time.monotonic()
        process.send(signal.SIGKILL)
        when, dead = died.get(timeout=5)
        assert dead is process
        assert dead.why() == "ended by SIGKILL"
        seen.append(when - killed)
    assert sorted(seen)[17] < 0.05  # nine in ten: others use the cores too


def test_what_it_wrote_is_kept_and_passed_on(watched, capfd):
    start, died = watched
    start(sys.executable, "-c", f"print('a' * {2 * TAIL_BYTES}); raise SystemExit('last words')")
    _, dead = died.get(timeout=5)
    assert dead.why() == "ended with status 1"
    assert dead.last_words().endswith("a\nlast words")
    assert len(dead.last_words()) < TAIL_BYTES
    assert capfd.readouterr().err == "a" * 2 * TAIL_BYTES + "\nlast words\n"


def test_one_that_closed_its_output_is_still_watched(watched):
    start, died = watched
    process = start("sh", "-c", "exec >&- 2>&-; sleep 60")
    time.sleep(0.05)
    assert died.empty()
    process.send(signal.SIGKILL)
    assert died.get(timeout=5)[1] is process


def test_settings_for_the_dead_are_dropped(watched):
    start, died = watched
    process = start("true")
    died.get(timeout=5)
    process.give(b"settings")
    process.send(signal.SIGKILL)
    assert process.why() == "ended with status 0"
