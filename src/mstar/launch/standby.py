"""Hot standby: a process without a role, with everything imported, that replaces a crashed one at once."""

from __future__ import annotations

import logging

from mstar.launch.process_handle import ProcessHandle, ProcessStarter
from mstar.launch.restart_backoff import RestartBackoff

STANDBY_NAME = "standby"
STANDBY_DELAY_S = 0.5
"""Seconds between the start of a child and of a new standby: the child needs the cores first."""

log = logging.getLogger("mstar.launch")


class Standby:
    """The standby of one deployment."""

    def __init__(self, starter: ProcessStarter) -> None:
        self.process: ProcessHandle | None = None
        self._starter = starter
        self._backoff = RestartBackoff()
        self._start_at = 0.0

    def tick(self, now: float) -> None:
        """Start a standby if there is none and one is due."""
        if self.process is not None or now < self._start_at:
            return
        try:
            self.process = self._starter.start(STANDBY_NAME)
        except OSError as error:  # such as too many processes
            self._start_at = now + max(self._backoff.on_exit(now), STANDBY_DELAY_S)
            log.warning("the standby could not start: %s", error)
        else:
            self._backoff.on_up(now)  # it reports nothing until it is used

    def take(self, now: float, name: str) -> ProcessHandle:
        """The standby, or a new process for this name. Raises OSError."""
        process = self.process or self._starter.start(name)
        self.process = None
        self._start_at = now + STANDBY_DELAY_S
        return process

    def on_exit(self, now: float, process: ProcessHandle) -> bool:
        """Handle the exit of a process; return whether it was the standby."""
        if process is not self.process:
            return False
        self.process = None
        self._start_at = now + max(self._backoff.on_exit(now), STANDBY_DELAY_S)
        return True
