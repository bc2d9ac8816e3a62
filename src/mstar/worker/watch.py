"""What a worker did in the last moments, noted for those who look on; while nobody does, nothing is noted.

Whoever asks is taken to look on for some time. Nothing is decided by it, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mstar.plan.tables import Call
from mstar.wire.messages import News, Peer
from mstar.wire.news import At, OpNews, Passing, StreamNews

if TYPE_CHECKING:
    from mstar.worker.core import WorkerCore
    from mstar.worker.order import Waiter
    from mstar.worker.tours import Guest

LASTS = 2.0
"""For so many seconds after it has asked somebody is taken to look on."""
REQUESTS = 1024
"""Of so many requests it is told where they are, at most."""
NEVER = 1e9
"""Who can wait for longer is not waiting for anything that is due."""

_Place = tuple[str, str, int]
"""A call of a walk: the model, the walk, and which of its calls."""


class _Notes:
    """What happened since somebody last asked."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.ops: dict[_Place, OpNews] = {}
        self.places: dict[str, At] = {}
        self.passed: dict[str, Passing] = {}


class Watch:
    """What is noted at one worker, for each who looks on."""

    def __init__(self) -> None:
        self._notes: dict[Peer, _Notes] = {}

    def __bool__(self) -> bool:
        return bool(self._notes)

    def ran(self, waiters: Sequence[Waiter], seconds: float) -> None:
        """A batch has just been run."""
        size = len(waiters)
        share = seconds / size
        for notes in self._notes.values():
            seen: set[_Place] = set()
            for waiter in waiters:
                start, at = waiter.tour.start, _at(waiter)
                place = (start.model, start.name, at)
                op = notes.ops.get(place)
                if op is None:
                    op = notes.ops[place] = OpNews(*place)
                op.calls += 1
                op.busy += share
                op.largest = max(op.largest, size)
                op.batches += place not in seen
                seen.add(place)
                if len(notes.places) < REQUESTS or start.rid in notes.places:
                    notes.places[start.rid] = At(start.rid, start.walk, at)

    def passed(self, to: Peer, seconds: float) -> None:
        """Something has gone to another worker."""
        for notes in self._notes.values():
            passing = notes.passed.setdefault(to.name, Passing(to.name))
            passing.count += 1
            passing.seconds += seconds

    def expire(self, now: float) -> None:
        """Note nothing more for those who have not asked for long."""
        self._notes = {peer: notes for peer, notes in self._notes.items() if notes.until > now}

    def news(self, now: float, asker: Peer, ticket: int, core: WorkerCore) -> News:
        """What happened since this one last asked, and how things are."""
        notes = self._notes.get(asker)
        self._notes[asker] = _Notes(now + LASTS)
        if notes is None:  # it has just begun to look on
            notes = _Notes(now)
        for waiter in core.waiting:
            start = waiter.tour.start
            notes.ops.setdefault(place := (start.model, start.name, _at(waiter)), OpNews(*place)).waiting += 1
        for waiter in (*core.waiting, *core.running()):  # where they are now is news, not where they were
            start = waiter.tour.start
            if len(notes.places) < REQUESTS or start.rid in notes.places:
                notes.places[start.rid] = At(start.rid, start.walk, _at(waiter))
        slack = core.waiting.least_slack()
        return News(
            ticket,
            core.stock(),
            slack if slack < NEVER else -1.0,
            list(notes.ops.values()),
            list(notes.places.values()),
            list(_streams(core.guests.values())),
            list(notes.passed.values()),
        )


def _at(waiter: Waiter) -> int:
    call = waiter.instruction.detail
    assert isinstance(call, Call), "nothing else waits"
    return call.at


def _streams(guests: Iterable[Guest]) -> Iterator[StreamNews]:
    found: dict[tuple[str, str, str], StreamNews] = {}
    for tour in (guest.tour for guest in guests if guest.tour is not None):
        counts: dict[int, int] = {}
        for run in tour.runs.values():
            for end in run.readers.values():
                stream = end.source[1]
                counts[stream] = max(counts.get(stream, 0), len(end.items))
        for stream, items in counts.items():
            name, bound = tour.plan.streams[stream]
            key = (tour.start.model, tour.start.name, name)
            one = found.setdefault(key, StreamNews(*key, 0, bound, 0))
            one.items = max(one.items, items)
            one.tours += 1
    yield from found.values()
