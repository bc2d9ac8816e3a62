"""Supervised child: a name with its current process, its restarts and its state as operators see it.

The supervisor starts and stops the process; this holds what it knows about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from signal import SIGTERM

import msgspec

from mstar.launch.process_handle import ProcessHandle
from mstar.launch.restart_backoff import RestartBackoff
from mstar.wire.messages import ExitCause, Peer

NOT_NEEDED = "not needed now"
"""State of a planned worker that is not needed now."""


class RestartStatus(msgspec.Struct, frozen=True):
    """Restarts and failed starts of one child."""

    restarts: int = 0
    """Number of restarts since the deployment started."""
    failed_starts: int = 0
    """Number of failed starts in a row; 0 if it is up."""
    next_start_in_s: float = 0.0
    """Seconds until the next attempt; 0 if one is in progress."""
    reason: str = ""
    """Reason of the last unexpected exit; empty once it is up again."""


class Child:
    """A supervised process name with its current process. A worker can have two; see `process_names`."""

    def __init__(self, name: str, *, is_needed: bool = True) -> None:
        self.peer = Peer(name, -1)
        self.process: ProcessHandle | None = None
        self.is_successor = False
        """Whether it was started beside the other process of its worker, which has not exited."""
        self.is_rolled_back = False
        """Whether it is a successor of an update that was rolled back: it finishes its requests."""
        self.backoff = RestartBackoff()
        self.is_needed = is_needed
        self.start_at = 0.0
        """Time of the next start while it has no process."""
        self.is_up = False
        self.devices: Mapping[str, str] = {}
        """Device of each component that its process has loaded; empty until the process registers."""
        self.nondeterminism: Mapping[str, str] = {}
        """Why results of a component can depend on the batch, for each component where they can."""
        self.exit_reason = ""
        """Reason of its last unexpected exit; empty once it is up again."""
        self.cpu_s = 0.0
        """CPU time at the last sample, in seconds."""
        self.kill_reason = ""
        """Reason of its kill or stop."""
        self.stopping_since: float | None = None
        """Time of the signal to stop, which it got because it is not needed."""

    def on_started(self, process: ProcessHandle) -> None:
        """Note the process of its next incarnation."""
        # The process comes last: other threads send to the peers of children that have one.
        self.peer = Peer(self.peer.name, self.peer.incarnation + 1)
        self.kill_reason, self.stopping_since, self.devices, self.nondeterminism = "", None, {}, {}
        self.process = process

    def is_meant(self, peer: Peer) -> bool:
        """Whether a command to stop this peer is for the current incarnation.

        A worker in a crash loop has had more incarnations than its conductor knows.
        """
        return self.peer == peer or (not self.is_up and self.peer.incarnation > peer.incarnation)

    def stop(self, now: float) -> bool:
        """Stop a worker that is not needed, or cancel its next start; return whether it was stopped at once."""
        was_needed, self.is_needed = self.is_needed, False
        self.backoff = RestartBackoff()  # a stop ends a crash loop, and its exit is no failed start
        self.is_successor = self.is_rolled_back = False
        if self.process is None:
            self.exit_reason = ""
            return was_needed
        if self.stopping_since is None:
            self.stopping_since, self.kill_reason = now, NOT_NEEDED
            self.process.send_signal(SIGTERM)
        return False

    def exit_cause(self) -> ExitCause:
        """Whether a request can be the cause of the exit of its process."""
        if self.process is None or self.stopping_since is not None or self.process.is_unreachable():
            return ExitCause.EXTERNAL
        return ExitCause.CRASH if self.kill_reason else self.process.exit_cause()  # killed: it made no progress

    def state(self) -> str:
        """State shown to operators. Can be called from other threads."""
        if process := self.process:  # read once: it can exit meanwhile
            return "up" if self.is_up else process.pending_reason() or "starting"
        if not self.is_needed:
            return NOT_NEEDED
        return "waiting to be restarted" if self.backoff.failed_starts else "waiting to be started"

    def role(self) -> str:
        """What it is beside the current process of its worker."""
        return "successor" if self.is_successor else "rolled back" if self.is_rolled_back else "old"

    def restart_status(self, now: float) -> RestartStatus:
        """Its restarts and failed starts."""
        failed_starts = self.backoff.failed_starts
        delay_s = 0.0 if self.process or not failed_starts else max(0.0, self.start_at - now)
        return RestartStatus(max(0, self.peer.incarnation), failed_starts, delay_s, self.exit_reason)
