"""Messages of other workers for a walk that the conductor has not announced here yet: they are kept for a while."""

from __future__ import annotations

from collections.abc import Iterator

from mstar.wire.messages import Notes, StateInput

MOST = 4096
"""How many may wait. One more is dropped, and its request is started anew when it is missed."""
LASTING = 5.0
"""For how many seconds they wait."""
REMEMBERED = 4096
"""Of how many requests it is known that they are over: what others still send for those is not kept."""

Walk = tuple[str, int, int]
"""A request, an attempt at it, and which of its walks."""


class Early:
    """What came too early, by the walk it is for."""

    def __init__(self) -> None:
        self._by_walk: dict[Walk, tuple[float, list[Notes | StateInput]]] = {}
        self._count = 0
        self._over: dict[str, int] = {}
        """The last attempt that is over, by request, the latest ones."""

    def __len__(self) -> int:
        return self._count

    def keep(self, now: float, message: Notes | StateInput) -> bool:
        """Keep a message, if there is room and its attempt is not over."""
        if self._count >= MOST or message.attempt <= self._over.get(message.rid, -1):
            return False
        walk = (message.rid, message.attempt, message.walk)
        self._by_walk.setdefault(walk, (now, []))[1].append(message)
        self._count += 1
        return True

    def take(self, walk: Walk) -> list[Notes | StateInput]:
        """What came for a walk that begins now, in order."""
        _, found = self._by_walk.pop(walk, (0.0, []))
        self._count -= len(found)
        return found

    def drop(self, rid: str, attempt: int) -> None:
        """Nothing up to this attempt at a request will begin any more."""
        for walk in [walk for walk in self._by_walk if walk[0] == rid and walk[1] <= attempt]:
            self.take(walk)
        self._over[rid] = max(attempt, self._over.pop(rid, -1))
        if len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]

    def expire(self, now: float) -> Iterator[Walk]:
        """Drop what nobody came for."""
        for walk, (since, _) in list(self._by_walk.items()):
            if now - since > LASTING:
                self.take(walk)
                yield walk
