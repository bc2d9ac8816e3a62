"""A thread that sees children die, at once, and hears what they write. What follows from it is decided elsewhere."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from mstar.launch.process import Process

Watched = TypeVar("Watched", bound=Process)


class Watch(Generic[Watched]):
    """Calls `died`, in its own thread, for each process that has ended and been reaped."""

    def __init__(self, died: Callable[[Watched], None]) -> None:
        self._died = died
        self._epoll = select.epoll()
        self._closing = os.eventfd(0)
        self._epoll.register(self._closing, select.EPOLLIN)
        self._by_fd: dict[int, Watched] = {}
        self._thread = threading.Thread(target=self._run, name="mstar-watch", daemon=True)
        self._thread.start()

    def add(self, process: Watched) -> None:
        """Watch this one too."""
        for fd in (process.output, process.pidfd):
            self._by_fd[fd] = process
            self._epoll.register(fd, select.EPOLLIN)

    def close(self) -> None:
        """End the thread. What still runs is watched no more."""
        os.eventfd_write(self._closing, 1)
        self._thread.join()
        self._epoll.close()
        os.close(self._closing)

    def _run(self) -> None:
        while True:
            ready = [fd for fd, _ in self._epoll.poll()]
            if self._closing in ready:
                return
            processes = [(fd, self._by_fd[fd]) for fd in ready]
            for fd, process in processes:
                if fd == process.output and not process.hear():  # it has closed its end
                    self._drop(fd)
            # Deaths last: they close descriptors, whose numbers another process may then have.
            for fd, process in processes:
                if fd == process.pidfd:
                    self._bury(process)

    def _bury(self, process: Watched) -> None:
        if process.output in self._by_fd:
            self._drop(process.output)
        self._drop(process.pidfd)
        process.reap()
        self._died(process)

    def _drop(self, fd: int) -> None:
        del self._by_fd[fd]
        self._epoll.unregister(fd)
