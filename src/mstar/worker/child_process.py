"""A child process of a worker, which computes a part of its components: it starts and ends with the worker.

A child that exits ends the worker in the same way, by the same signal or status, so that the launcher sees the cause.
It starts the worker again, and with it its children; the requests of the worker are replayed.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from mstar.config import ProcessConfig
from mstar.worker.channel import Channel

log = logging.getLogger("mstar.worker")

CHILD_LOST_STATUS = 70
"""Exit status of a worker that lost a child for another reason than its exit."""
_SIGNAL_TIMEOUT_S = 1.0
"""Seconds in which a signal ends this process, if it is not handled."""


class ChildProcess:
    """A child process with a channel to it. `configure` makes its configuration from the descriptor of its end."""

    def __init__(self, name: str, configure: Callable[[int], ProcessConfig]) -> None:
        self._name = name
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "mstar.launch.child_main", str(os.getpid())),
            stdin=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
        )
        config = configure(theirs.fileno())
        theirs.close()
        assert self._process.stdin, "stdin=PIPE"
        with self._process.stdin as stdin:
            stdin.write(msgspec.msgpack.encode(config))
        self.channel = Channel(ours)
        threading.Thread(target=self._watch, name=f"mstar-{name.replace(' ', '-')}", daemon=True).start()

    def exit_if_ended(self, timeout_s: float) -> None:
        """Exit as the child did, if it ends in time."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return
        exit_like(status)

    def _watch(self) -> None:
        """Wait for the exit of the child, and exit as it did."""
        status = self._process.wait()
        log.critical("%s of this worker exited (%s), so that the worker is started again", self._name, status)
        exit_like(status)


def exit_like(status: int) -> NoReturn:
    """End this process by the signal or with the status of another one; never with success. Called in any thread."""
    if status < 0:
        os.kill(os.getpid(), -status)
        time.sleep(_SIGNAL_TIMEOUT_S)  # another thread can be the one that gets it
    os._exit(max(status, 0) or CHILD_LOST_STATUS)
