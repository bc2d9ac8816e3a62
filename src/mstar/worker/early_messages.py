"""Buffer for data of walks that the conductor has not started at this worker yet.

Data from another worker can overtake the conductor's StartWalk. Messages are kept for `EARLY_MESSAGE_TTL_S`; one that
does not fit is dropped, and its request is retried when the walk misses it.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar.wire.messages import DataBatch, StateInput

MAX_EARLY_MESSAGES = 4096
"""Maximum buffered messages."""
EARLY_MESSAGE_TTL_S = 5.0
"""Seconds to keep messages of a walk that does not start."""
MAX_FINISHED_REQUESTS = 4096
"""Maximum finished requests to remember, so that their late messages are rejected."""

WalkKey = tuple[str, int, int]
"""Request id, attempt, walk index."""


class EarlyMessages:
    """Early messages by walk."""

    def __init__(self) -> None:
        self._by_walk: dict[WalkKey, tuple[float, list[DataBatch | StateInput]]] = {}
        self._count = 0
        self._finished_attempts: dict[str, int] = {}
        """Last finished attempt of recent requests."""

    def __len__(self) -> int:
        return self._count

    def add(self, now: float, message: DataBatch | StateInput) -> bool:
        """Buffer a message. Returns False if the buffer is full or the attempt has finished."""
        if self._count >= MAX_EARLY_MESSAGES or message.attempt <= self._finished_attempts.get(message.rid, -1):
            return False
        walk = (message.rid, message.attempt, message.walk_index)
        self._by_walk.setdefault(walk, (now, []))[1].append(message)
        self._count += 1
        return True

    def take(self, walk: WalkKey) -> list[DataBatch | StateInput]:
        """Remove and return the messages of a walk, in order of arrival."""
        _, messages = self._by_walk.pop(walk, (0.0, []))
        self._count -= len(messages)
        return messages

    def drop(self, rid: str, attempt: int) -> None:
        """Drop all messages of a request up to this attempt, and reject later ones."""
        for walk in [walk for walk in self._by_walk if walk[0] == rid and walk[1] <= attempt]:
            self.take(walk)
        self._finished_attempts[rid] = max(attempt, self._finished_attempts.pop(rid, -1))
        if len(self._finished_attempts) > MAX_FINISHED_REQUESTS:
            del self._finished_attempts[next(iter(self._finished_attempts))]

    def expire(self, now: float) -> Iterator[WalkKey]:
        """Drop the messages of walks that did not start in time; yields the walks."""
        for walk, (since, _) in list(self._by_walk.items()):
            if now - since > EARLY_MESSAGE_TTL_S:
                self.take(walk)
                yield walk
