"""Reaper thread: waits on pidfds for child exits and forwards their output. Restarts are decided by the supervisor."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from mstar.launch.os_process.process import Process

ProcessT = TypeVar("ProcessT", bound=Process)


class Reaper(Generic[ProcessT]):
    """Calls `on_exit`, in its own thread, for each process that has exited and was reaped."""

    def __init__(self, on_exit: Callable[[ProcessT], None]) -> None:
        self._on_exit = on_exit
        self._epoll = select.epoll()
        self._close_fd = os.eventfd(0)
        self._epoll.register(self._close_fd, select.EPOLLIN)
        self._by_fd: dict[int, ProcessT] = {}
        self._thread = threading.Thread(target=self._run, name="mstar-reaper", daemon=True)
        self._thread.start()

    def add(self, process: ProcessT) -> None:
        """Watch a process."""
        for fd in (process.output, process.pidfd):
            self._by_fd[fd] = process
            self._epoll.register(fd, select.EPOLLIN)

    def close(self) -> None:
        """Stop the thread. Running processes are no longer watched."""
        os.eventfd_write(self._close_fd, 1)
        self._thread.join()
        self._epoll.close()
        os.close(self._close_fd)

    def _run(self) -> None:
        while True:
            ready = [fd for fd, _ in self._epoll.poll()]
            if self._close_fd in ready:
                return
            processes = [(fd, self._by_fd[fd]) for fd in ready]
            for fd, process in processes:
                if fd == process.output and not process.forward_output():  # end of file
                    self._unregister(fd)
            # Exits last: they close descriptors, whose numbers can then be reused.
            for fd, process in processes:
                if fd == process.pidfd:
                    self._reap(process)

    def _reap(self, process: ProcessT) -> None:
        if process.output in self._by_fd:
            self._unregister(process.output)
        self._unregister(process.pidfd)
        process.reap()
        self._on_exit(process)

    def _unregister(self, fd: int) -> None:
        del self._by_fd[fd]
        self._epoll.unregister(fd)
