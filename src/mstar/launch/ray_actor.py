"""The keeper: what Ray runs on a host for one worker or conductor. It starts the real process there and watches it.

Ray finds a host for it, and another one if that host dies; a keeper that is started again keeps nobody at first. The
process itself holds no Ray. What its death means is decided by the launcher, which is told. It dies with its keeper.
"""

from __future__ import annotations

import os
import sys
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
from mstar.wire.messages import Suspect

MAX_OUTPUT_BYTES = 64 * 1024
"""How much of what a child writes is kept for a launcher that does not ask."""
KILL_TIMEOUT_S = 5.0
"""How long an old life may take to vanish once it is killed, before the next is not begun."""


class ExitReport(msgspec.Struct, frozen=True):
    """How a life ended."""

    reason: str
    stderr_tail: str = ""
    suspects: list[Suspect] = []
    output: bytes = b""
    """What it wrote after the last look."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """How a life is."""

    cpu_s: float = 0.0
    """How many seconds of processor time it has used."""
    loading: tuple[int, str] | None = None
    output: bytes = b""
    """What it has written since the last look."""


class WatchedProcess(LocalProcess):
    """A life whose words are kept until the launcher asks for them."""

    _output = b""

    def on_output(self, data: bytes) -> None:
        """Keep what it wrote; if nobody asks, the end of it."""
        self._output = (self._output + data)[-MAX_OUTPUT_BYTES:]

    def take_output(self) -> bytes:
        """What it has written since this was asked last."""
        said, self._output = self._output, b""
        return said


class ProcessActor:
    """Keeps one process at a time. Its calls come from several threads of Ray."""

    def __init__(self, name: str, arguments: Sequence[str], directory: str) -> None:
        self._name = name
        with suppress(OSError):  # models may be told by paths from there
            os.chdir(directory)
        self._run_directory = RunDirectory(runtime_directory())
        self._ip = ray.util.get_node_ip_address()
        # Children die with the thread that started them, and Ray's threads come and go.
        self._start_executor = ThreadPoolExecutor(1, "mstar-process-actor", _reset_priority)
        self._starter = LocalStarter(WatchedProcess, (sys.executable, *arguments, str(os.getpid())), lambda _: None)
        self._process: WatchedProcess | None = None
        self._incarnation = -1
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"process actor of {self._name}"  # as Ray's dashboard shows it

    def start(self, data: bytes) -> tuple[int, str]:
        """Start who these settings are for, unless it runs already; its number, and the address of this host."""
        settings = msgspec.msgpack.decode(data, type=ConductorConfig | WorkerConfig)
        with self._lock:
            if self._process is None or self._incarnation != settings.incarnation:
                self._kill_previous()
                self._process = self._start_executor.submit(self._starter.start, settings.name).result()
                self._incarnation = settings.incarnation
                self._process.configure(self._to_local_config(settings))
            return self._process.pid, self._ip

    def _kill_previous(self) -> None:
        """An old life is over, whether or not it knows: it was given up while this host could not be reached."""
        if self._process:
            self._process.send_signal(SIGKILL)
            if not self._process.exited.wait(KILL_TIMEOUT_S):
                raise TimeoutError(f"process {self._process.pid} was killed and does not end")
            self._process.crash_suspects()

    def _to_local_config(self, settings: ChildConfig) -> ChildConfig:
        """The same settings with what is only known on this host."""
        home = {"directory": str(self._run_directory.path), "ip": self._ip}
        if isinstance(settings, WorkerConfig):
            home["black_box"] = str(self._run_directory.path / f"{settings.name}.{settings.incarnation}.box")
        return msgspec.structs.replace(settings, **home)

    def wait_exit(self, incarnation: int, timeout_s: float) -> bytes | None:
        """Wait for the end of a life: how it ended, or None if it goes on after so long."""
        with self._lock:
            life, is_kept = self._process, self._incarnation == incarnation
        if life is None or not is_kept:
            return msgspec.msgpack.encode(ExitReport("ended with its host, or with its keeper there"))
        if not life.exited.wait(timeout_s):
            return None
        return msgspec.msgpack.encode(
            ExitReport(life.exit_reason(), life.stderr_tail(), life.crash_suspects(), life.take_output())
        )

    def send_signal(self, incarnation: int, signal_number: int) -> None:
        """Send a life a signal, if it is the one that is meant."""
        with self._lock:
            if self._process and self._incarnation == incarnation:
                self._process.send_signal(Signals(signal_number))

    def status(self) -> bytes:
        """How it is."""
        life = self._process
        return msgspec.msgpack.encode(
            ProcessStatus(life.cpu_seconds(), life.loading_progress(), life.take_output()) if life else ProcessStatus()
        )

    def close(self) -> None:
        """End everything here."""
        with self._lock:
            self._kill_previous()
            self._starter.close()
            self._start_executor.shutdown()
            self._run_directory.remove()


def _reset_priority() -> None:
    """What this thread starts gives way to nobody. Ray's processes do, unless RAY_worker_niceness says otherwise."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
