"""Ray actor that starts and watches one conductor or worker process on a host.

Ray schedules the actor, and reschedules it if its host dies; a rescheduled actor starts without a process. The process
itself does not use Ray and dies with the actor. The launcher decides what its exit means.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from signal import SIGKILL, Signals
from threading import Lock

import msgspec
import ray.util

from mstar.config import ConductorConfig, WorkerConfig, runtime_directory
from mstar.launch.local_process import LocalProcess, LocalStarter
from mstar.launch.process_handle import ChildConfig
from mstar.launch.run_directory import RunDirectory
from mstar.wire.messages import ExitCause, Suspect

MAX_OUTPUT_BYTES = 64 * 1024
"""Maximum bytes of output kept until the launcher polls."""
KILL_TIMEOUT_S = 5.0
"""Seconds to wait for a killed predecessor to exit before the next start fails."""


class ExitReport(msgspec.Struct, frozen=True):
    """How a process exited."""

    reason: str
    stderr_tail: str = ""
    suspects: list[Suspect] = []
    output: bytes = b""
    """Output since the last poll."""
    cause: ExitCause = ExitCause.EXTERNAL


class ProcessStatus(msgspec.Struct, frozen=True):
    """Status of a running process."""

    cpu_s: float = 0.0
    """CPU time used, in seconds."""
    loading: tuple[int, str] | None = None
    output: bytes = b""
    """Output since the last poll."""


class WatchedProcess(LocalProcess):
    """Local process whose output is buffered until the launcher polls it."""

    _output = b""

    def on_output(self, data: bytes) -> None:
        """Buffer the output, keeping the newest MAX_OUTPUT_BYTES."""
        self._output = (self._output + data)[-MAX_OUTPUT_BYTES:]

    def take_output(self) -> bytes:
        """Return and clear the buffered output."""
        output, self._output = self._output, b""
        return output


class ProcessActor:
    """Runs one process at a time. Methods are called from several threads of Ray."""

    def __init__(self, name: str, arguments: Sequence[str], directory: str, python: str = "") -> None:
        """`python` is the interpreter of the process; empty for that of the actor."""
        self._name = name
        with suppress(OSError):  # model paths can be relative to it
            os.chdir(directory)
        self._run_directory = RunDirectory(runtime_directory())
        self._ip = ray.util.get_node_ip_address()
        # Children die with the thread that started them, and Ray's threads are short-lived.
        self._start_executor = ThreadPoolExecutor(1, "mstar-process-actor", _reset_priority)
        self._starter = LocalStarter(
            WatchedProcess, (python or sys.executable, *arguments, str(os.getpid())), lambda _: None
        )
        self._process: WatchedProcess | None = None
        self._incarnation = -1
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"process actor of {self._name}"  # shown in Ray's dashboard

    def start(self, data: bytes) -> tuple[int, str]:
        """Start the process of this configuration unless it runs (idempotent). Returns its pid and the host address."""
        config = msgspec.msgpack.decode(data, type=ConductorConfig | WorkerConfig)
        with self._lock:
            if self._process is None or self._incarnation != config.incarnation:
                self._kill_previous()
                self._process = self._start_executor.submit(self._starter.start, config.name).result()
                self._incarnation = config.incarnation
                self._process.configure(self._to_local_config(config))
            return self._process.pid, self._ip

    def _kill_previous(self) -> None:
        """Kill the previous incarnation: it was superseded while this host was unreachable."""
        if self._process:
            self._process.send_signal(SIGKILL)
            if not self._process.exited.wait(KILL_TIMEOUT_S):
                raise TimeoutError(
                    f"process {self._process.pid} did not exit within {KILL_TIMEOUT_S:g} s after SIGKILL"
                )
            self._process.crash_suspects()

    def _to_local_config(self, config: ChildConfig) -> ChildConfig:
        """The configuration with the values of this host filled in."""
        local_values = {"directory": str(self._run_directory.path), "ip": self._ip}
        if isinstance(config, WorkerConfig):
            local_values["black_box"] = str(self._run_directory.path / f"{config.name}.{config.incarnation}.box")
        return msgspec.structs.replace(config, **local_values)

    def wait_exit(self, incarnation: int, timeout_s: float) -> bytes | None:
        """Wait for the exit of an incarnation. Returns the encoded ExitReport, or None on timeout."""
        with self._lock:
            process, is_current = self._process, self._incarnation == incarnation
        if process is None or not is_current:
            return msgspec.msgpack.encode(ExitReport("its host or its Ray actor there died"))
        if not process.exited.wait(timeout_s):
            return None
        return msgspec.msgpack.encode(
            ExitReport(
                process.exit_reason(),
                process.stderr_tail(),
                process.crash_suspects(),
                process.take_output(),
                process.exit_cause(),
            )
        )

    def send_signal(self, incarnation: int, signal_number: int) -> None:
        """Send a signal, if this incarnation is the current one."""
        with self._lock:
            if self._process and self._incarnation == incarnation:
                self._process.send_signal(Signals(signal_number))

    def status(self) -> bytes:
        """Encoded ProcessStatus."""
        process = self._process
        self._starter.tick(time.monotonic())
        return msgspec.msgpack.encode(
            ProcessStatus(process.cpu_seconds(), process.loading_progress(), process.take_output())
            if process
            else ProcessStatus()
        )

    def close(self) -> None:
        """Stop the process and clean up."""
        with self._lock:
            self._kill_previous()
            self._starter.close()
            self._start_executor.shutdown()
            self._run_directory.remove()


def _reset_priority() -> None:
    """Undo the niceness that Ray sets (RAY_worker_niceness), for processes that this thread starts."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
