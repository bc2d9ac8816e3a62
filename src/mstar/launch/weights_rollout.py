"""Rolling updates of weights as the launcher sees them: their version, and which conductors have not finished.

Conductors replace their workers one by one and report the end. If a worker fails to start twice in a row, its
conductor rolls the update back: the old workers keep serving, and a worker that is started later gets their version.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

import msgspec

from mstar.wire.messages import RolloutFailed, RollWeights, WeightsRolled

log = logging.getLogger("mstar.launch")


class RolloutStatus(msgspec.Struct, frozen=True):
    """Rolling updates since the start."""

    is_running: bool = False
    completed: int = 0
    failed: int = 0
    error: str = ""
    """Why the last update failed; empty if it did not."""


class WeightsRollout:
    """Rolling updates of one deployment. They run one after the other, so that versions differ by one update."""

    def __init__(self, conductors: Collection[str], send: Callable[[RollWeights], None]) -> None:
        self.weights_version = 0
        """Version of the last update."""
        self.finished = threading.Event()
        """Set while no update runs."""
        self.finished.set()
        self._conductors = conductors
        self._send = send
        self._unfinished: set[str] = set()
        """Conductors that have not confirmed the current update."""
        self._is_requested = False
        """Whether a further update was requested during the current one."""
        self._serving_versions: dict[str, int] = {}
        """Version of the workers of each conductor that rolled back the last update."""
        self._completed = self._failed = 0
        self._error = ""

    def status(self) -> RolloutStatus:
        """Return the status, also from another thread."""
        return RolloutStatus(not self.finished.is_set(), self._completed, self._failed, self._error)

    def version_for(self, conductor: str) -> int:
        """Return the version of the weights that a new worker of this conductor loads."""
        return self._serving_versions.get(conductor, self.weights_version)

    def is_pending(self, conductor: str) -> bool:
        """Return whether a conductor has not finished the current update."""
        return conductor in self._unfinished

    def request(self) -> None:
        """Start an update, after the current one."""
        self._is_requested = True
        if self.finished.is_set():
            self.finished.clear()
            self._start_next()

    def on_rolled(self, conductor: str, message: WeightsRolled) -> None:
        """A conductor has replaced all its workers."""
        if message.weights_version == self.weights_version:
            self._check_off(conductor)

    def on_failed(self, conductor: str, message: RolloutFailed) -> None:
        """A conductor has rolled back the update."""
        if message.weights_version != self.weights_version or conductor not in self._unfinished:
            return
        self._serving_versions[conductor] = message.serving_version
        self._error = f"worker {message.worker} failed to start with the new weights: {message.reason}"
        log.error("the rolling update stopped: %s. The old workers keep serving.", self._error)
        self._check_off(conductor)

    def _check_off(self, conductor: str) -> None:
        if conductor in self._unfinished:
            self._unfinished.discard(conductor)
            if not self._unfinished:
                self._completed, self._failed = self._completed + (not self._error), self._failed + bool(self._error)
                self._start_next()

    def _start_next(self) -> None:
        """Start the update that was requested meanwhile, or finish."""
        if not self._is_requested:
            self.finished.set()
            return
        self._is_requested, self._error = False, ""
        self.weights_version += 1
        self._unfinished = {*self._conductors}
        self._serving_versions.clear()
        self._send(RollWeights(self.weights_version))
