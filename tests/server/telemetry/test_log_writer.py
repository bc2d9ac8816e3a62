"""Log writer: lines are written in order by a thread; a blocked stream costs lines, and no caller waits."""

import io
import os
import threading
import time

import pytest

from mstar.server.telemetry import log_writer
from mstar.server.telemetry.log_writer import LogWriter


def describe(count):
    return f"{count} dropped"


def test_lines_are_written_in_order():
    stream = io.StringIO()
    writer = LogWriter(stream, describe)
    for number in range(1000):
        writer.write(str(number))
    writer.close()
    assert stream.getvalue().splitlines() == [str(number) for number in range(1000)]


def test_lines_that_follow_closely_share_a_write(monkeypatch):
    monkeypatch.setattr(log_writer, "MIN_INTERVAL_S", 30.0)
    writes = []
    stream = io.StringIO()
    stream.flush = lambda: writes.append(stream.getvalue())
    writer = LogWriter(stream, describe)
    writer.write("first")
    while not writes:  # the first line does not wait
        time.sleep(0.001)
    for number in range(100):
        writer.write(str(number))
        time.sleep(0.0005)
    assert writer.flush(5), "a flush does not wait for the interval"
    writer.close()
    assert len(writes) == 2


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_full_queue_drops_lines_and_says_so_later(is_blocking):
    reading, writing = os.pipe()
    os.set_blocking(writing, is_blocking)
    dropped, line = [], "x" * 999
    with os.fdopen(writing, "w") as stream:
        writer = LogWriter(stream, describe)
        writer.on_drop = lambda: dropped.append(1)
        start = time.monotonic()
        for _ in range(2 * log_writer.MAX_QUEUED_BYTES // 1000):
            writer.write(line)
        assert time.monotonic() - start < 5
        assert dropped
        assert not writer.flush(0.05)
        lines = _drain(reading, writer)
    assert lines.count(line) == 2 * log_writer.MAX_QUEUED_BYTES // 1000 - len(dropped)
    # One report or several: the thread may have written some lines before the last one was dropped.
    assert sum(int(one.split()[0]) for one in lines if one.endswith(" dropped")) == len(dropped)


def _drain(reading, writer):
    chunks, done = [], threading.Event()
    os.set_blocking(reading, False)

    def read():
        while not done.is_set():
            try:
                chunks.append(os.read(reading, 1 << 16))
            except BlockingIOError:
                time.sleep(0.001)

    thread = threading.Thread(target=read)
    thread.start()
    assert writer.flush(10)
    done.set()
    thread.join()
    while True:
        try:
            chunks.append(os.read(reading, 1 << 16))
        except BlockingIOError:
            break
    os.close(reading)
    return b"".join(chunks).decode().splitlines()


def test_a_stream_that_cannot_be_written_is_borne():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        writer = LogWriter(stream, describe)
        writer.write("lost")
        assert writer.flush(5)
        writer.close()
