"""Failure detection of conductors, run by the launcher: a conductor that hangs is replaced.

A conductor sends the launcher a heartbeat every `HEARTBEAT_INTERVAL_S`. Its replacement costs no weights, only a replay
of its requests, so the limit is shorter than that of a worker:

1. Silent for `silence_timeout_s` without using CPU time: replace it.
2. Silent for `compute_timeout_s` while it uses CPU time, for example in a route: replace it.
3. Of several silent conductors, replace one per `second_look_s`: they can share a cause.

Pauses of the launcher do not count (`ActiveClock`). An exit is detected by pidfd, not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from mstar.wire.active_clock import ActiveClock
from mstar.wire.messages import Peer

HEARTBEAT_INTERVAL_S = 0.5
"""Seconds between two heartbeats of a conductor to the launcher."""


@dataclass(frozen=True, slots=True)
class WatchTuning:
    """Timing of the detection."""

    silence_timeout_s: float = 5.0
    """Seconds without a message or CPU use before a conductor is replaced."""
    compute_timeout_s: float = 60.0
    """Seconds without a message before a conductor that computes is replaced."""
    second_look_s: float = 1.0
    """Minimum seconds between two replacements."""


@dataclass(eq=False, slots=True)
class _Watched:
    last_message_at: float
    last_alive_at: float
    """Last message or CPU use."""


class ConductorWatch:
    """The conductors of one launcher that are up."""

    def __init__(self, tuning: WatchTuning | None = None) -> None:
        self._tuning = tuning or WatchTuning()
        self._clock = ActiveClock()
        self._watched: dict[Peer, _Watched] = {}
        self._last_replaced_at = float("-inf")

    def on_message(self, now: float, conductor: Peer) -> None:
        """A conductor has sent a message. The first one starts the watch."""
        now = self._clock.advance(now)
        self._watched[conductor] = _Watched(now, now)

    def on_computing(self, now: float, conductor: Peer) -> None:
        """A conductor uses CPU time."""
        if watched := self._watched.get(conductor):
            watched.last_alive_at = self._clock.advance(now)

    def forget(self, conductor: Peer) -> None:
        """Stop watching a conductor: it has exited."""
        self._watched.pop(conductor, None)

    def find_hung(self, now: float) -> tuple[Peer, float] | None:
        """Return the conductor that must be replaced now, and the seconds for which it was silent.

        Must be called on every tick.
        """
        now = self._clock.advance(now)
        hung = [
            (now - watched.last_message_at, peer)
            for peer, watched in self._watched.items()
            if now - watched.last_alive_at > self._tuning.silence_timeout_s
            or now - watched.last_message_at > self._tuning.compute_timeout_s
        ]
        if not hung or now - self._last_replaced_at < self._tuning.second_look_s:
            return None
        self._last_replaced_at = now
        silent_s, peer = max(hung, key=lambda each: each[0])  # peers have no order
        self.forget(peer)
        return peer, silent_s
