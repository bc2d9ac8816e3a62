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

from mstar.config import ConductorSettings, WorkerSettings, run_root
from mstar.launch.directory import RunDirectory
from mstar.launch.life import Here, Life
from mstar.launch.running import ChildSettings
from mstar.wire.messages import Suspect

SAID_BYTES = 64 * 1024
"""How much of what a child writes is kept for a launcher that does not ask."""
KILLED_S = 5.0
"""How long an old life may take to vanish once it is killed, before the next is not begun."""


class Death(msgspec.Struct, frozen=True):
    """How a life ended."""

    why: str
    words: str = ""
    suspects: list[Suspect] = []
    said: bytes = b""
    """What it wrote after the last look."""


class Look(msgspec.Struct, frozen=True):
    """How a life is."""

    used: float = 0.0
    """How many seconds of processor time it has used."""
    loading: tuple[int, str] | None = None
    said: bytes = b""
    """What it has written since the last look."""


class Kept(Life):
    """A life whose words are kept until the launcher asks for them."""

    _said = b""

    def pass_on(self, data: bytes) -> None:
        """Keep what it wrote; if nobody asks, the end of it."""
        self._said = (self._said + data)[-SAID_BYTES:]

    def take(self) -> bytes:
        """What it has written since this was asked last."""
        said, self._said = self._said, b""
        return said


class Keeper:
    """Keeps one process at a time. Its calls come from several threads of Ray."""

    def __init__(self, name: str, arguments: Sequence[str], directory: str) -> None:
        self._name = name
        with suppress(OSError):  # models may be told by paths from there
            os.chdir(directory)
        self._run = RunDirectory(run_root())
        self._ip = ray.util.get_node_ip_address()
        # Children die with the thread that started them, and Ray's threads come and go.
        self._forever = ThreadPoolExecutor(1, "mstar-keeper", _hurry)
        self._here = Here(Kept, (sys.executable, *arguments, str(os.getpid())), lambda _: None)
        self._life: Kept | None = None
        self._incarnation = -1
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"keeper of {self._name}"  # as Ray's dashboard shows it

    def start(self, data: bytes) -> tuple[int, str]:
        """Start who these settings are for, unless it runs already; its number, and the address of this host."""
        settings = msgspec.msgpack.decode(data, type=ConductorSettings | WorkerSettings)
        with self._lock:
            if self._life is None or self._incarnation != settings.incarnation:
                self._end_old()
                self._life = self._forever.submit(self._here.start, settings.name).result()
                self._incarnation = settings.incarnation
                self._life.become(self._at_home(settings))
            return self._life.pid, self._ip

    def _end_old(self) -> None:
        """An old life is over, whether or not it knows: it was given up while this host could not be reached."""
        if self._life:
            self._life.send(SIGKILL)
            if not self._life.ended.wait(KILLED_S):
                raise TimeoutError(f"process {self._life.pid} was killed and does not end")
            self._life.remains()

    def _at_home(self, settings: ChildSettings) -> ChildSettings:
        """The same settings with what is only known on this host."""
        home = {"directory": str(self._run.path), "ip": self._ip}
        if isinstance(settings, WorkerSettings):
            home["black_box"] = str(self._run.path / f"{settings.name}.{settings.incarnation}.box")
        return msgspec.structs.replace(settings, **home)

    def watch(self, incarnation: int, seconds: float) -> bytes | None:
        """Wait for the end of a life: how it ended, or None if it goes on after so long."""
        with self._lock:
            life, is_kept = self._life, self._incarnation == incarnation
        if life is None or not is_kept:
            return msgspec.msgpack.encode(Death("ended with its host, or with its keeper there"))
        if not life.ended.wait(seconds):
            return None
        return msgspec.msgpack.encode(Death(life.why(), life.last_words(), life.remains(), life.take()))

    def send(self, incarnation: int, number: int) -> None:
        """Send a life a signal, if it is the one that is meant."""
        with self._lock:
            if self._life and self._incarnation == incarnation:
                self._life.send(Signals(number))

    def look(self) -> bytes:
        """How it is."""
        life = self._life
        return msgspec.msgpack.encode(Look(life.used(), life.loading(), life.take()) if life else Look())

    def close(self) -> None:
        """End everything here."""
        with self._lock:
            self._end_old()
            self._here.close()
            self._forever.shutdown()
            self._run.remove()


def _hurry() -> None:
    """What this thread starts gives way to nobody. Ray's processes do, unless RAY_worker_niceness says otherwise."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
