"""Child process: pipes, pidfd, signals, the cause of its exit, and the tail of its output.

It does not know the role of the child, and does not restart it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from mstar.config import extend_environment
from mstar.launch.os_process.oom_kills import OomKills
from mstar.launch.os_process.output import OutputForwarder
from mstar.wire.messages import ExitCause

OUTPUT_TAIL_BYTES = 8 * 1024
"""Bytes of its latest output kept for error messages."""
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_STAT_BYTES = 4096
_CHUNK_BYTES = 64 << 10
"""Maximum bytes of output read at once."""
CRASH_SIGNALS = frozenset(
    {
        *(signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
        *(signal.SIGSYS, signal.SIGTRAP),
    }
)
"""Signals that a process causes itself."""


class Process:
    """Child process in its own session. It gets its configuration once, on stdin; its output is forwarded."""

    def __init__(self, command: Sequence[str], oom_kills: OomKills, variables: Mapping[str, str] | None = None) -> None:
        """`variables` are environment variables that differ from those of this process."""
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=extend_environment(variables or {}),
        )
        assert self._popen.stdin, "stdin=PIPE"
        assert self._popen.stdout, "stdout=PIPE"
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        self.pid = self._popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.output = self._stdout.fileno()
        self.exited = threading.Event()
        """Set after it was reaped."""
        os.set_blocking(self.output, False)
        self._oom_kills = oom_kills
        self._tail = b""
        self.forwarder = OutputForwarder("child", self.pid)
        self._fd_lock = threading.Lock()
        """Guards the descriptors: the number of a closed one can be reused."""

    def write_stdin(self, encoded_config: bytes) -> None:
        """Write its configuration and close stdin."""
        with self._fd_lock:
            if not self.exited.is_set():
                with suppress(BrokenPipeError), self._stdin:  # it can be dead; the reaper notices
                    self._stdin.write(encoded_config)

    def send_signal(self, signal_number: signal.Signals) -> None:
        """Send a signal, unless it has exited."""
        with self._fd_lock, suppress(ProcessLookupError):  # reaped, and its last output is being read
            if not self.exited.is_set():
                signal.pidfd_send_signal(self.pidfd, signal_number)

    def forward_output(self) -> bool:
        """Forward a chunk of its output; False if there is none."""
        try:
            data = os.read(self.output, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._tail = (self._tail + data)[-OUTPUT_TAIL_BYTES:]
        self.on_output(data)
        return bool(data)

    def on_output(self, data: bytes) -> None:
        """Handle a chunk of its output: forwarded to the log."""
        self.forwarder.feed(data)

    def reap(self) -> None:
        """Clean up after its exit: kill its process group, forward remaining output, close descriptors."""
        with suppress(ProcessLookupError):  # before wait(), the group id cannot be reused
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        while self.forward_output():
            pass
        self.forwarder.finish()
        with self._fd_lock:
            self._stdin.close()
            self._stdout.close()
            os.close(self.pidfd)
            self.exited.set()

    def cpu_seconds(self) -> float:
        """CPU time it has used, in seconds; 0 if it has exited."""
        try:
            stat = os.open(f"/proc/{self.pid}/stat", os.O_RDONLY)  # a Path costs several times the read itself
        except OSError:
            return 0.0
        try:
            fields = os.read(stat, _MAX_STAT_BYTES).rpartition(b")")[2].split()
        except OSError:  # it exits
            return 0.0
        finally:
            os.close(stat)
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_PER_S

    def exit_reason(self) -> str:
        """Exit signal or status."""
        code = self._popen.returncode
        return f"killed by {_signal_name(-code)}" if code < 0 else f"exited with status {code}"

    def exit_cause(self) -> ExitCause:
        """Whether the process caused its exit. To be called soon after the exit."""
        code = self._popen.returncode
        if code == -signal.SIGKILL:
            return self._oom_kills.cause_of_kill()
        return ExitCause.CRASH if code >= 0 or -code in CRASH_SIGNALS else ExitCause.EXTERNAL

    def stderr_tail(self) -> str:
        """Tail of its output."""
        return self._tail.decode(errors="replace").strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
