"""One child process as the launcher holds it: its pipes, its pidfd, the last of what it wrote.

It does not know what the child is for, and it does not start it again.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

OUTPUT_TAIL_BYTES = 8 * 1024
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CHUNK_BYTES = select.PIPE_BUF
"""So much can be written without waiting to what polls as writable."""


class Process:
    """A child in a session of its own. It gets its settings once, on stdin; what it writes is passed on."""

    def __init__(self, command: Sequence[str]) -> None:
        self._popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert self._popen.stdin, "asked for"
        assert self._popen.stdout, "asked for"
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        self.pid = self._popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.output = self._stdout.fileno()
        self.exited = threading.Event()
        """It is dead, and nothing of it is left."""
        os.set_blocking(self.output, False)
        self._tail = b""
        self._fd_lock = threading.Lock()
        """Held where descriptors are used or closed: the number of a closed one may be another's."""

    def write_stdin(self, encoded_config: bytes) -> None:
        """Tell it what it is to be."""
        with self._fd_lock:
            if not self.exited.is_set():
                with suppress(BrokenPipeError), self._stdin:  # it may be dead; who watches it will notice
                    self._stdin.write(encoded_config)

    def send_signal(self, signal_number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with self._fd_lock:
            if not self.exited.is_set():
                signal.pidfd_send_signal(self.pidfd, signal_number)

    def forward_output(self) -> bool:
        """Pass on a piece of what it wrote; False if there is none."""
        try:
            data = os.read(self.output, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._tail = (self._tail + data)[-OUTPUT_TAIL_BYTES:]
        self.on_output(data)
        return bool(data)

    def on_output(self, data: bytes) -> None:
        """Write what it wrote where we write ourselves."""
        write_stderr(data)

    def reap(self) -> None:
        """It has died: end what it started, take its last words, free what the kernel keeps for it."""
        with suppress(ProcessLookupError):  # as long as it is not waited for, no other group can have this number
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        while self.forward_output():
            pass
        with self._fd_lock:
            self._stdin.close()
            self._stdout.close()
            os.close(self.pidfd)
            self.exited.set()

    def cpu_seconds(self) -> float:
        """How many seconds of processor time it has used; 0 if it has ended."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_PER_S

    def exit_reason(self) -> str:
        """How it ended."""
        code = self._popen.returncode
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    def stderr_tail(self) -> str:
        """The end of what it wrote."""
        return self._tail.decode(errors="replace").strip()


def write_stderr(data: bytes) -> None:
    """Write to our own stderr, unless nobody reads there."""
    with suppress(OSError):  # it may be closed
        if select.select([], [2], [], 0)[1]:  # a terminal that stands still must not stop us from watching
            os.write(2, data)
