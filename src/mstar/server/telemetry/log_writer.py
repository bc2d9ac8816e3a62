"""Log writer: a bounded queue and a thread that writes log lines, so that logging blocks no caller.

A reader of the log that stops (a full pipe, a paused terminal) would otherwise block the event loop in the write of a
line, and with it every client. When the queue is full, lines are dropped and counted; the log says how many as soon as
it can be written again.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

MAX_QUEUED_BYTES = 1 << 20
"""Maximum size of lines that wait to be written, in bytes."""
MAX_WRITE_BYTES = 320 << 10
"""Maximum size of the lines in one write."""
MIN_INTERVAL_S = 0.1
"""Minimum seconds between two writes, unless the queue is flushed."""
FLUSH_TIMEOUT_S = 1.0
"""Seconds to wait for the queued lines at the end."""


class LogWriter:
    """Writes lines to a stream in its own thread. `describe_drops` makes the line that reports dropped lines."""

    def __init__(self, stream: TextIO, describe_drops: Callable[[int], str]) -> None:
        self.on_drop: Callable[[], None] | None = None
        """Called for each dropped line, in any thread."""
        self._stream = stream
        self._fd = _fd_of(stream)
        self._describe_drops = describe_drops
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        """Lines dropped since the last report."""
        self._is_writing = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._is_flushing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mstar-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line, without its line end; it is dropped if the queue is full."""
        data = line.encode(errors="replace") + b"\n"
        with self._changed:
            is_dropped = self._queued_bytes + len(data) > MAX_QUEUED_BYTES
            if is_dropped:
                self._dropped += 1
            else:
                if not self._lines:  # else the thread does not wait for lines
                    self._changed.notify_all()
                self._lines.append(data)
                self._queued_bytes += len(data)
        if is_dropped and self.on_drop is not None:
            self.on_drop()

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Wait until all queued lines are written. Returns whether they are."""
        self._is_flushing.set()
        with self._changed:
            is_written = self._changed.wait_for(lambda: not self._lines and not self._is_writing, timeout_s)
        self._is_flushing.clear()
        return is_written

    def close(self) -> None:
        """Write the queued lines and stop. The thread is left behind if the stream is blocked."""
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # ---------------------------------------------------------------- thread
    def _run(self) -> None:
        while (data := self._take()) is not None:
            self._write(data)
            with self._changed:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self._write(f"{self._describe_drops(dropped)}\n".encode())
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
            # Every wake-up of this thread interrupts the event loop, so lines that follow closely share one.
            self._is_flushing.wait(MIN_INTERVAL_S)

    def _take(self) -> bytes | None:
        """Wait for lines; returns some of them, or None after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_closed)
            if not self._lines:
                return None
            taken: list[bytes] = []
            size = 0
            while self._lines and (not taken or size + len(self._lines[0]) <= MAX_WRITE_BYTES):
                taken.append(self._lines.popleft())
                size += len(taken[-1])
            self._queued_bytes -= size
            self._is_writing = True
            return b"".join(taken)

    def _write(self, data: bytes) -> None:
        with suppress(OSError, ValueError):  # closed, or the disk is full: the log is lost, the server is not
            if self._fd is None:
                self._stream.write(data.decode())
                self._stream.flush()
                return
            # Not through the stream: a thread that blocks in it holds its lock, and Python aborts at exit.
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except BlockingIOError:  # another process has made the file non-blocking
                    select.select([], [self._fd], [])


def _fd_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None  # a stream in memory
