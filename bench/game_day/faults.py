"""The faults of a game day: how each acts on a running server, and how it is undone.

A fault has three parts: `reason_against` says why it cannot be injected here, `apply` starts it, `undo` ends it.
Between the last two the schedule waits for the duration of the fault. `tests` names the promises that a fault is for;
all other promises of bench/game_day/promises.py must be kept meanwhile too.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import threading
from contextlib import suppress
from typing import ClassVar

from bench.game_day.freezer import Freezer
from bench.game_day.load import Kind, Load
from bench.game_day.observations import LEFT, RequestRecord
from bench.game_day.schedule import FaultSpec, PlannedFault
from bench.game_day.server import WORKERS, Server
from bench.models.game_day import weights_text

STREAMS_UNREAD, LARGE_BODIES, BODY_BYTES = 300, 3, 28 << 20
"""Streams that an abusive key opens and does not read; its large requests, and the bytes of each."""
ARRAYS, ARRAY_MIB = 6, 64
"""Large values at once, and MiB of each: more than an arena holds."""
FEED_CHUNKS = 40
"""Parts in which a slow disk delivers a file."""


class Fault:
    """A fault, before it is applied. One instance is for one injection."""

    name: ClassVar[str]
    what: ClassVar[str]
    """What it does, for the report."""
    tests: ClassVar[tuple[str, ...]]
    """Promises that it is for."""
    seconds: ClassVar[tuple[float, float]]
    """Shortest and longest duration in the shortest slot."""
    max_seconds: ClassVar[float] = 30.0

    def __init__(self, server: Server, load: Load, planned: PlannedFault) -> None:
        self.server, self.load, self.planned = server, load, planned
        self.note = ""

    @classmethod
    def targets(cls, real_models: tuple[str, ...]) -> tuple[str, ...]:
        """What it can act on. `real_models` are the models whose workers can be reloaded within the slot."""
        del real_models
        return ("server",)

    def reason_against(self) -> str:
        """Why it cannot be injected here, or nothing."""
        return ""

    async def apply(self) -> None:
        """Start it."""
        raise NotImplementedError

    async def undo(self) -> None:
        """End it."""

    def pid(self, name: str) -> int:
        """The process of that name. Raises ProcessLookupError if there is none now."""
        try:
            return self.server.processes()[name]
        except KeyError:
            raise ProcessLookupError(f"{name} does not run") from None


def _workers(real_models: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(worker for model in ("toy", "pair", *real_models) for worker in WORKERS[model])


class KillWorker(Fault):
    """SIGKILL to a worker."""

    name, what = "kill-worker", "SIGKILL to a worker"
    tests = ("worker", "diverged", "not-retryable", "recovery")
    seconds = (0.0, 0.0)

    @classmethod
    def targets(cls, real_models: tuple[str, ...]) -> tuple[str, ...]:
        return _workers(real_models)

    async def apply(self) -> None:
        os.kill(self.pid(self.planned.target), signal.SIGKILL)


class KillConductor(Fault):
    """SIGKILL to the conductor."""

    name, what, tests = "kill-conductor", "SIGKILL to the conductor", ("conductor",)
    seconds = (0.0, 0.0)

    @classmethod
    def targets(cls, real_models: tuple[str, ...]) -> tuple[str, ...]:
        del real_models
        return ("conductor",)

    async def apply(self) -> None:
        os.kill(self.pid("conductor"), signal.SIGKILL)


class _Stop(Fault):
    """SIGSTOP to one process, then SIGCONT if it still exists."""

    _stopped = 0

    async def apply(self) -> None:
        self._stopped = self.pid(self.planned.target)
        os.kill(self._stopped, signal.SIGSTOP)

    async def undo(self) -> None:
        replaced = self._stopped not in self.server.processes().values()
        self.note = "replaced meanwhile" if replaced else "continued"
        if not replaced:
            os.kill(self._stopped, signal.SIGCONT)


class StopWorker(_Stop):
    """A worker that hangs."""

    name, what, tests = "stop-worker", "SIGSTOP to a worker", ("hung-worker",)
    seconds = (2.5, 3.5)

    @classmethod
    def targets(cls, real_models: tuple[str, ...]) -> tuple[str, ...]:
        return _workers(real_models)


class HungConductor(_Stop):
    """A conductor that hangs."""

    name, what, tests = "hung-conductor", "SIGSTOP to the conductor", ("conductor",)
    seconds = (1.5, 3.5)

    @classmethod
    def targets(cls, real_models: tuple[str, ...]) -> tuple[str, ...]:
        del real_models
        return ("conductor",)


class FreezeTree(Fault):
    """SIGSTOP to all processes of the server, then SIGCONT."""

    name, what, tests = "freeze-tree", "SIGSTOP to all processes, then SIGCONT", ("no-false-kill",)
    seconds, max_seconds = (1.2, 2.0), 4.0
    _frozen: tuple[int, ...] = ()

    async def apply(self) -> None:
        self._frozen = tuple(self.server.tree())
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    async def undo(self) -> None:
        for pid in reversed(self._frozen):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class PauseContainer(FreezeTree):
    """All processes frozen by a control group, as `docker pause` does, or by signals. The clocks of the machine run."""

    name, what, tests = "pause-container", "all processes paused for longer, as a container is", ("no-false-kill",)
    seconds, max_seconds = (2.0, 3.0), 15.0
    _freezer: Freezer | None = None

    async def apply(self) -> None:
        try:
            self._freezer = Freezer(f"game-day-{self.server.pid}")
            self._freezer.freeze(self.server.tree())
            self.note = "by a control group"
        except OSError as error:
            self.note = f"by SIGSTOP: no control group ({error.strerror})"
            await super().apply()

    async def undo(self) -> None:
        if self._freezer:
            self._freezer.thaw()
        await super().undo()


class FillDisk(Fault):
    """A run directory without any free space, and a worker that has to start meanwhile."""

    name, what, tests = "fill-disk", "run directory full, then SIGKILL to t1", ("disk", "recovery")
    seconds = (1.5, 2.5)
    _directory = -1

    def reason_against(self) -> str:
        return "" if self.server.has_small_disk else "no permission to mount a small file system"

    async def apply(self) -> None:
        worker = self.pid("t1")  # first: a fault that cannot be injected must leave nothing
        self._directory = self.server.open_run_directory()
        file = os.open("filler", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=self._directory)
        try:
            for size in (1 << 16, 1 << 12, 1):
                with suppress(OSError):
                    while os.write(file, bytes(size)):
                        pass
        finally:
            os.close(file)
        with suppress(ProcessLookupError):  # it has exited meanwhile, and is restarted as well
            os.kill(worker, signal.SIGKILL)

    async def undo(self) -> None:
        os.unlink("filler", dir_fd=self._directory)
        os.close(self._directory)


class SlowDisk(Fault):
    """The weights file of the toy model is a pipe that delivers its bytes slowly, and the worker has to read it."""

    name, what, tests = "slow-disk", "weights are delivered slowly, then SIGKILL to t1", ("worker", "recovery")
    seconds = (2.0, 3.0)

    def __init__(self, server: Server, load: Load, planned: PlannedFault) -> None:
        super().__init__(server, load, planned)
        self._is_over = threading.Event()
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._pipe = server.folder / "slow.weights"

    def _feed(self) -> None:
        """Write the file to a reader of the pipe in small parts, and at once when the fault is over."""
        data = weights_text()
        size = -(-len(data) // FEED_CHUNKS)
        while not self._is_over.is_set():
            try:
                end = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: no reader yet
                    return
                self._is_over.wait(0.02)
                continue
            os.set_blocking(end, True)
            with suppress(BrokenPipeError):
                for at in range(0, len(data), size):
                    os.write(end, data[at : at + size])
                    self._is_over.wait(self.planned.seconds / FEED_CHUNKS)
            os.close(end)
            self.note = "the weights were read from the slow disk"

    async def apply(self) -> None:
        worker = self.pid("t1")  # first: a fault that cannot be injected must leave nothing
        os.mkfifo(self._pipe)
        os.replace(self._pipe, self.server.weights)
        self._pipe = self.server.weights
        self._feeder.start()
        with suppress(ProcessLookupError):  # it has exited meanwhile, and is restarted as well
            os.kill(worker, signal.SIGKILL)

    async def undo(self) -> None:
        intact = self.server.folder / "intact.weights"
        intact.write_bytes(weights_text())
        # A reader that has the pipe open gets the rest at once.
        self._is_over.set()
        os.replace(intact, self.server.weights)
        await asyncio.to_thread(self._feeder.join, 5.0)


class BrokenRollout(Fault):
    """SIGHUP while the weights file of the toy model is damaged."""

    name, what, tests = "broken-rollout", "SIGHUP while the weights of toy are damaged", ("rollout",)
    seconds, max_seconds = (2.0, 3.0), 12.0

    async def apply(self) -> None:
        damaged = self.server.folder / "damaged.weights"
        damaged.write_bytes(b"damaged")
        os.replace(damaged, self.server.weights)
        self.server.signal(signal.SIGHUP)

    async def undo(self) -> None:
        intact = self.server.folder / "intact.weights"
        intact.write_bytes(weights_text())
        os.replace(intact, self.server.weights)


class PoisonedRequest(Fault):
    """A request that kills its worker each time."""

    name, what, tests = "poisoned-request", "a request that kills its worker", ("poison",)
    seconds = (0.0, 0.0)

    async def apply(self) -> None:
        kind = Kind("poisoned", "toy", "bob", 0.0, self.load.count("bob", 1, 0.0))
        self.record(kind, await self.load.record(kind, self.load.chat("bob", "toy", "kill"), None))

    def record(self, kind: Kind, record: RequestRecord) -> None:
        """Keep the record, and its end in the note."""
        self.load.records.append(record)
        self.note = f"{kind.name}: {record.outcome} {record.code}"


class FillArena(Fault):
    """Several values between two workers that together exceed the shared memory of their sender."""

    name, what, tests = "fill-arena", f"{ARRAYS} values of {ARRAY_MIB} MiB at once between p1 and p2", ("arena",)
    seconds = (0.0, 0.0)

    async def apply(self) -> None:
        pairs = [self.load.carry("alice", ARRAY_MIB, key) for key in range(1, ARRAYS + 1)]
        kind = Kind("large value", "pair", "alice", 0.0, self.load.relay("alice"))
        records = await asyncio.gather(*(self.load.record(kind, *pair) for pair in pairs))
        self.load.records += records
        self.note = ", ".join(f"{one.outcome} {one.code}".strip() for one in records)


class KeyAbuse(Fault):
    """A key that opens many streams and reads none, and sends large bodies."""

    name, what = "key-abuse", f"one key: {STREAMS_UNREAD} unread streams, {LARGE_BODIES} bodies of 28 MB"
    tests = ("tenants", "overload")
    seconds = (2.5, 3.5)

    def __init__(self, server: Server, load: Load, planned: PlannedFault) -> None:
        super().__init__(server, load, planned)
        self._unread: list[socket.socket] = []
        self._begun = 0.0
        self._bodies: list[asyncio.Task[RequestRecord]] = []

    async def apply(self) -> None:
        self._begun = self.load.clock()
        endless = self.load.chat("mallory", "toy", "count 1 1000000 0.001").encode()
        for _ in range(STREAMS_UNREAD):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", self.server.port))
            one.sendall(endless)
            self._unread.append(one)
            await asyncio.sleep(0)
        model = "chat" if "chat" in self.load.real_models else "toy"
        kind = Kind("abuse", model, "mallory", 0.0, self.load.count("mallory", 1, 0.0))
        body = self.load.chat("mallory", model, "a b " * (BODY_BYTES // 4))
        self._bodies = [asyncio.create_task(self.load.record(kind, body, None)) for _ in range(LARGE_BODIES)]

    async def undo(self) -> None:
        streams = [self._end_of(one) for one in self._unread]
        done, pending = await asyncio.wait(self._bodies, timeout=0.5)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        records = [task.result() for task in done]
        self.load.records += [*records, *streams]
        ends = [f"{one.status} {one.code}".strip() for one in records] + ["left"] * len(pending)
        refused = sum(one.status == 429 for one in streams)
        self.note = f"{refused} streams got 429; large bodies: {', '.join(ends)}"

    def _end_of(self, connection: socket.socket) -> RequestRecord:
        """Leave a stream that was not read; its status is in what the kernel has received."""
        with connection:
            connection.setblocking(False)
            try:
                head = connection.recv(4096).decode("latin-1").lower()
            except OSError:
                head = ""
        status, retry = re.match(r"http/1.1 (\d+)", head), re.search(r"retry-after-ms: (\d+)", head)
        code = re.search(r'"code": ?"(\w+)"', head)
        now = self.load.clock()
        return RequestRecord(
            "unread stream",
            "toy",
            "mallory",
            self._begun,
            now,
            LEFT,
            int(status[1]) if status else 0,
            code[1] if code else "",
            retry_after_s=int(retry[1]) / 1000 if retry else 0.0,
        )


FAULTS: dict[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        *(KillWorker, KillConductor, StopWorker, HungConductor, FreezeTree, PauseContainer),
        *(FillDisk, SlowDisk, BrokenRollout, PoisonedRequest, FillArena, KeyAbuse),
    )
}


def fault_specs(real_models: tuple[str, ...]) -> list[FaultSpec]:
    """All faults, as the schedule draws them."""
    return [
        FaultSpec(name, fault.targets(real_models), fault.seconds, fault.max_seconds) for name, fault in FAULTS.items()
    ]
