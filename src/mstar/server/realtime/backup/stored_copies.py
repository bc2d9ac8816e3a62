"""Copies that a server keeps for others, and which of them were taken over. Pure, without IO.

**Fencing.** Two servers can believe that they have a session: the old one and the one that took it over. Each takeover
has a higher fencing epoch, its time. A server whose copy was taken refuses later updates of lower epochs, and an event
is sent to the client only after its update was stored: the old server sends nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from mstar.server.realtime.backup.session_copy import SessionCopy, SessionKey, SessionUpdate

FENCE_TTL_S = 600.0
"""Seconds for which a takeover is remembered: twice as long as a session can wait for its client."""


class Outcome(Enum):
    """What became of an update."""

    STORED = "stored"
    FENCED = "fenced"
    """Another server has taken the session over."""
    REFUSED = "refused"
    """There is no memory for it, or an earlier update is missing."""


class TakenCopy(NamedTuple):
    """The copy of a session that another server takes over, and the highest epoch that is known."""

    copy: SessionCopy | None
    epoch: int


class StoredCopies:
    """Copies by session. `reserve` reserves memory for a tenant, and returns False if there is none."""

    def __init__(self, reserve: Callable[[str, int], bool], release: Callable[[str, int], None]) -> None:
        self._reserve = reserve
        self._release = release
        self._copies: dict[SessionKey, SessionCopy] = {}
        self._expires_at: dict[SessionKey, float] = {}
        """When a copy is dropped whose session sends no updates any more."""
        self._fences: dict[SessionKey, tuple[int, float]] = {}
        """Lowest epoch that is accepted, and when that is forgotten, of each session that was taken over."""

    def __len__(self) -> int:
        return len(self._copies)

    def store(self, update: SessionUpdate) -> Outcome:
        """Apply an update."""
        key, copy = update.key, self._copies.get(update.key)
        if update.epoch < self._fences.get(key, (0, 0.0))[0]:
            return Outcome.FENCED
        if copy is not None and (copy.epoch, copy.number) > (update.epoch, update.number):
            return Outcome.FENCED
        if not update.is_whole and (copy is None or (copy.epoch, copy.number + 1) != (update.epoch, update.number)):
            return Outcome.REFUSED
        before = 0 if copy is None else copy.size_bytes
        if update.is_whole or copy is None:
            copy = SessionCopy.from_whole(update)
        else:
            copy.apply(update)
        added = copy.size_bytes - before
        if added > 0 and not self._reserve(key[0], added):
            self._release(key[0], before)
            self._copies.pop(key, None)
            return Outcome.REFUSED
        if added < 0:
            self._release(key[0], -added)
        self._copies[key] = copy
        self._expires_at.pop(key, None)
        return Outcome.STORED

    def take(self, now: float, key: SessionKey, epoch: int) -> TakenCopy:
        """The copy of a session for its next server, which proposes this epoch; its present one is fenced."""
        copy, fence = self._copies.get(key), self._fences.get(key, (0, 0.0))[0]
        known = max(fence, 0 if copy is None else copy.epoch)
        if epoch <= known:  # a request that arrives late, or a slow clock: then the server asks again
            return TakenCopy(None, known)
        if copy is not None or fence:
            self._fences[key] = epoch, now + FENCE_TTL_S
        if copy is not None:  # kept: the next server can be lost before it has sent its copy to another one
            self._expires_at[key] = now + copy.resume_timeout_s
        return TakenCopy(copy, known)

    def end(self, key: SessionKey, epoch: int) -> None:
        """The session has ended, at the server with this epoch."""
        copy = self._copies.get(key)
        if copy is not None and copy.epoch <= epoch:
            self._drop(key)

    def on_lost(self, now: float, key: SessionKey) -> None:
        """The connection of the server that has the session was lost: wait for the client as long as it would."""
        if (copy := self._copies.get(key)) is not None:
            self._expires_at.setdefault(key, now + copy.resume_timeout_s)

    def expire(self, now: float) -> None:
        """Drop copies whose client did not come back, and old fences."""
        for key in [key for key, at in self._expires_at.items() if at <= now]:
            self._drop(key)
        for key in [key for key, (_, at) in self._fences.items() if at <= now]:
            del self._fences[key]

    def _drop(self, key: SessionKey) -> None:
        copy = self._copies.pop(key)
        self._expires_at.pop(key, None)
        self._release(key[0], copy.size_bytes)
