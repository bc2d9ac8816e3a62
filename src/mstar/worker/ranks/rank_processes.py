"""The other ranks of a worker as child processes of rank 0: they start and end with it.

A rank that exits ends rank 0 in the same way, by the same signal or status, so that the launcher sees the cause. It
starts the worker again, and with it all ranks; the requests of the worker are replayed.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NoReturn

import msgspec

from mstar.config import RankConfig, WorkerConfig, use_loopback
from mstar.errors import DeviceFailed
from mstar.worker.ranks.channel import Channel

if TYPE_CHECKING:
    from mstar.nn.ranks import Rank

log = logging.getLogger("mstar.worker")

JOIN_TIMEOUT_S = 1800.0
"""Seconds that a rank waits for another one, which can be loading its weights."""
RANK_LOST_STATUS = 70
"""Exit status of a worker that lost a rank for another reason than the exit of its process."""
_EXIT_TIMEOUT_S = 2.0
"""Seconds in which the exit of a rank explains an error of rank 0."""
_SIGNAL_TIMEOUT_S = 1.0
"""Seconds in which a signal ends this process, if it is not handled."""


class RankProcesses:
    """Ranks 1 to `count` - 1 of a worker. Starts them, and watches them."""

    def __init__(self, settings: WorkerConfig, count: int) -> None:
        self._count = count
        self._address = f"file://{settings.directory}/{settings.name}.{settings.incarnation}.{os.getpid()}.ranks"
        self.channels: list[Channel] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, count):
            self._start(settings, rank)
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._watch, args=(rank, process), name=f"mstar-rank-{rank}", daemon=True).start()

    def _start(self, settings: WorkerConfig, rank: int) -> None:
        ours, theirs = socket.socketpair()
        config = RankConfig(
            name=f"{settings.name} rank {rank}",
            incarnation=settings.incarnation,
            directory=settings.directory,
            key=b"",
            peers={},
            models=settings.models,
            placements=settings.placements,
            options=settings.options,
            worker=settings,
            rank=rank,
            ranks=self._count,
            address=self._address,
            channel=theirs.fileno(),
        )
        process = subprocess.Popen(
            (sys.executable, "-P", "-m", "mstar.launch.child_main", str(os.getpid())),
            stdin=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        assert process.stdin, "stdin=PIPE"
        with process.stdin:
            process.stdin.write(msgspec.msgpack.encode(config))
        self.channels.append(Channel(ours))
        self._processes.append(process)

    def join(self) -> AbstractContextManager[Rank]:
        """Join the group of the ranks as rank 0."""
        return join(self._address, 0, self._count)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Wait for the exit of a rank, and exit as it did."""
        status = process.wait()
        log.critical("rank %d of this worker exited (%s), so that all its ranks are started again", rank, status)
        _exit_like(status)

    def end_process(self, error: DeviceFailed) -> None:
        """End all ranks after an error. If one has exited, that was the cause."""
        log.critical("this worker ends: %s", error, exc_info=error)
        for process in self._processes:
            try:
                _exit_like(process.wait(_EXIT_TIMEOUT_S / len(self._processes)))
            except subprocess.TimeoutExpired:
                continue
        os._exit(RANK_LOST_STATUS)


def join(address: str, rank: int, ranks: int) -> AbstractContextManager[Rank]:
    """Join the group of a worker."""
    from mstar.nn.ranks import join_group  # imports torch

    use_loopback()
    return join_group(address, rank, ranks, timeout_s=JOIN_TIMEOUT_S)


def _exit_like(status: int) -> NoReturn:
    """End this process by the signal or with the status of another one; never with success. Called in any thread."""
    if status < 0:
        os.kill(os.getpid(), -status)
        time.sleep(_SIGNAL_TIMEOUT_S)  # another thread can be the one that gets it
    os._exit(max(status, 0) or RANK_LOST_STATUS)
