"""Messages of other workers for a walk that the conductor has not announced here yet: they are kept for a while."""

from __future__ import annotations

from collections.abc import Iterator

from mstar.wire.messages import DataBatch, StateInput

MAX_EARLY_MESSAGES = 4096
"""How many may wait. One more is dropped, and its request is started anew when it is missed."""
EARLY_MESSAGE_TTL_S = 5.0
"""For how many seconds they wait."""
MAX_FINISHED_REQUESTS = 4096
"""Of how many requests it is known that they are over: what others still send for those is not kept."""

WalkKey = tuple[str, int, int]
"""A request, an attempt at it, and which of its walks."""


class EarlyMessages:
    """What came too early, by the walk it is for."""

    def __init__(self) -> None:
        self._by_walk: dict[WalkKey, tuple[float, list[DataBatch | StateInput]]] = {}
        self._count = 0
        self._finished_attempts: dict[str, int] = {}
        """The last attempt that is over, by request, the latest ones."""

    def __len__(self) -> int:
        return self._count

    def add(self, now: float, message: DataBatch | StateInput) -> bool:
        """Keep a message, if there is room and its attempt is not over."""
        if self._count >= MAX_EARLY_MESSAGES or message.attempt <= self._finished_attempts.get(message.rid, -1):
            return False
        walk = (message.rid, message.attempt, message.walk_index)
        self._by_walk.setdefault(walk, (now, []))[1].append(message)
        self._count += 1
        return True

    def take(self, walk: WalkKey) -> list[DataBatch | StateInput]:
        """What came for a walk that begins now, in order."""
        _, found = self._by_walk.pop(walk, (0.0, []))
        self._count -= len(found)
        return found

    def drop(self, rid: str, attempt: int) -> None:
        """Nothing up to this attempt at a request will begin any more."""
        for walk in [walk for walk in self._by_walk if walk[0] == rid and walk[1] <= attempt]:
            self.take(walk)
        self._finished_attempts[rid] = max(attempt, self._finished_attempts.pop(rid, -1))
        if len(self._finished_attempts) > MAX_FINISHED_REQUESTS:
            del self._finished_attempts[next(iter(self._finished_attempts))]

    def expire(self, now: float) -> Iterator[WalkKey]:
        """Drop what nobody came for."""
        for walk, (since, _) in list(self._by_walk.items()):
            if now - since > EARLY_MESSAGE_TTL_S:
                self.take(walk)
                yield walk
