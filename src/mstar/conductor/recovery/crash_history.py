"""Crash history of a request: the deaths of workers that it can have caused, and whether it is poison.

1. An external death (see `ExitCause`) is not recorded: no request caused it.
2. After any other death the request runs alone around the call at which the worker died.
3. It is poison if a worker crashes while it runs alone, at the call (±1) of an earlier crash.
4. It is poison after MAX_LONE_DEATHS deaths at one call (±1) while it ran alone, also if they are unexplained.

Step 4 ends requests that exhaust the memory of a host whose kernel does not tell so.
"""

from __future__ import annotations

from dataclasses import dataclass

from mstar.wire.messages import ExitCause, Peer

ISOLATION_MARGIN_CALLS = 2
"""Calls past the one at which a worker died until a suspect is batched with other requests again."""
MAX_LONE_DEATHS = 4
"""Number of unexplained deaths at one call, while the request ran alone, that make it poison. The first death usually
comes before the request runs alone, so that it takes five."""


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """Death of a worker that was computing a request."""

    calls_completed: int
    """Calls of the op that the request had completed."""
    was_alone: bool
    """Whether the batch had no other request."""
    cause: ExitCause


class CrashHistory:
    """The deaths of workers that were computing one request."""

    def __init__(self) -> None:
        self.isolate_at_call = 0
        """Run the request alone around this call of each op (0: never); see `StartWalk`."""
        self._deaths: dict[Peer, WorkerDeath] = {}

    @property
    def has_deaths(self) -> bool:
        """Whether a worker died while it was computing the request."""
        return bool(self._deaths)

    def record(self, worker: Peer, death: WorkerDeath) -> bool:
        """Record a death, once for each worker; return whether the request is poison."""
        if worker in self._deaths or death.cause is ExitCause.EXTERNAL:
            return False
        earlier = self._deaths_at(death.calls_completed)
        self._deaths[worker] = death
        # Only the last place counts: an earlier death can have had another cause.
        self.isolate_at_call = death.calls_completed + ISOLATION_MARGIN_CALLS
        if not death.was_alone:
            return False
        has_crashed = death.cause is ExitCause.CRASH and any(each.cause is ExitCause.CRASH for each in earlier)
        return has_crashed or 1 + sum(each.was_alone for each in earlier) >= MAX_LONE_DEATHS

    def count_at(self, call: int) -> int:
        """Number of deaths at a call."""
        return len(self._deaths_at(call))

    def _deaths_at(self, call: int) -> list[WorkerDeath]:
        return [death for death in self._deaths.values() if abs(death.calls_completed - call) <= 1]
