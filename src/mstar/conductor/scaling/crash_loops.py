"""Workers in a crash loop: they exit before they register, and the launcher retries them with exponential backoff.

A request that needs such a worker is rejected at once instead of waiting for it. The launcher counts the failed starts;
a registration ends the crash loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mstar.wire.messages import Peer, ProcessExited


@dataclass(frozen=True, slots=True)
class CrashLoopTuning:
    """Constants of crash loops."""

    min_failed_starts: int = 3
    """Number of failed starts in a row from which a worker is in a crash loop."""
    min_retry_after_s: float = 1.0
    """Minimum of the Retry-After of a rejected request, in seconds."""


@dataclass(frozen=True, slots=True)
class FailedStarts:
    """Failed starts of one worker."""

    peer: Peer
    """Its last incarnation."""
    count: int
    next_start_at: float


class CrashLoops:
    """Failed starts of the workers of one conductor."""

    def __init__(self, tuning: CrashLoopTuning | None = None) -> None:
        self._tuning = tuning or CrashLoopTuning()
        self._failed: dict[str, FailedStarts] = {}

    # ---------------------------------------------------------------- events
    def on_exited(self, now: float, exited: ProcessExited) -> None:
        """Note an exit that the launcher reports."""
        peer, count = exited.peer, exited.failed_starts
        if count:
            self._failed[peer.worker] = FailedStarts(peer, count, now + exited.next_start_in_s)
        else:
            self.remove(peer.worker)

    def remove(self, name: str) -> None:
        """Forget the failed starts of a worker that registered or was stopped."""
        self._failed.pop(name, None)

    # ---------------------------------------------------------------- queries
    @property
    def is_empty(self) -> bool:
        """Whether no start has failed: the fast path for each request."""
        return not self._failed

    def find(self, names: Iterable[str]) -> list[FailedStarts]:
        """Return those of the named workers that are in a crash loop."""
        failed = (self._failed.get(name) for name in names)
        limit = self._tuning.min_failed_starts
        return [starts for starts in failed if starts is not None and starts.count >= limit]

    def retry_after_s(self, now: float, names: Iterable[str]) -> float:
        """Return the seconds until the first of the named workers that are in a crash loop starts again."""
        next_start_s = min((starts.next_start_at - now for starts in self.find(names)), default=0.0)
        return max(self._tuning.min_retry_after_s, next_start_s)
