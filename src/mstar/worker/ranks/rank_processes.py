"""The other ranks of a worker as child processes of rank 0."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mstar.config import RankConfig, WorkerConfig, use_loopback
from mstar.errors import DeviceFailed
from mstar.worker.child_process import CHILD_LOST_STATUS, ChildProcess

if TYPE_CHECKING:
    from mstar.nn.ranks import Rank

log = logging.getLogger("mstar.worker")

JOIN_TIMEOUT_S = 1800.0
"""Seconds that a rank waits for another one, which can be loading its weights."""
_EXIT_TIMEOUT_S = 2.0
"""Seconds in which the exit of a rank explains an error of rank 0."""


class RankProcesses:
    """Ranks 1 to `count` - 1 of a worker. Starts them, and watches them."""

    def __init__(self, settings: WorkerConfig, count: int) -> None:
        self._count = count
        self._address = f"file://{settings.directory}/{settings.name}.{settings.incarnation}.{os.getpid()}.ranks"
        self._processes = [self._start(settings, rank) for rank in range(1, count)]
        self.channels = [process.channel for process in self._processes]

    def _start(self, settings: WorkerConfig, rank: int) -> ChildProcess:
        def configure(channel: int) -> RankConfig:
            return RankConfig(
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
                channel=channel,
            )

        return ChildProcess(f"rank {rank}", configure)

    def join(self) -> AbstractContextManager[Rank]:
        """Join the group of the ranks as rank 0."""
        return join(self._address, 0, self._count)

    def end_process(self, error: DeviceFailed) -> None:
        """End all ranks after an error. If one has exited, that was the cause."""
        log.critical("this worker ends: %s", error, exc_info=error)
        for process in self._processes:
            process.exit_if_ended(_EXIT_TIMEOUT_S / len(self._processes))
        os._exit(CHILD_LOST_STATUS)


def join(address: str, rank: int, ranks: int) -> AbstractContextManager[Rank]:
    """Join the group of a worker."""
    from mstar.nn.ranks import join_group  # imports torch

    use_loopback()
    return join_group(address, rank, ranks, timeout_s=JOIN_TIMEOUT_S)
