"""What goes on in a deployment, put together from the news of its processes: moment by moment, for those who look on.

It tells only what changed. It asks nobody itself (see `events`), and decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mstar.wire.messages import News
from mstar.wire.news import OpNews, RequestNews, StreamNews, WorkerNews

if TYPE_CHECKING:
    from mstar.server.door import Condition, Door
    from mstar.server.timeline import Entry

Told = dict[str, Any]


@dataclass(slots=True)
class Seen:
    """A request that is under way: how it is, where it was seen, and what was told of it last."""

    news: RequestNews
    conductor: str
    """Who conducts it."""
    at: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By worker: in which of its walks it was last seen there, and at which call."""
    told: Told = field(default_factory=Told)
    tenant: str | None = None
    """Whose it is; None while that is not known: it was not opened here, or long ago."""
    entry: Entry | None = None
    """What its client sent, likewise."""

    def look(self, tenant: str | None, entry: Entry | None) -> bool:
        """Put together what is known of it; whether that is new."""
        news = self.news
        at = [[name, at] for name, (number, at) in self.at.items() if number == news.number and name in news.seats]
        told = {
            "rid": news.rid,
            "id": None if entry is None else entry.passage.id,
            "model": news.model,
            "state": news.state,
            "walk": news.walk,
            "number": news.number,
            "attempt": news.attempt,
            "seats": news.seats,
            "at": at,
            "emitted": {} if entry is None else {kind: one.count for kind, one in entry.delivered.items()},
        }
        self.tenant, self.entry = tenant, entry or self.entry
        is_new = any(self.told.get(key) != value for key, value in told.items())
        if is_new:
            self.told = told | {"age": news.age}
        return is_new


@dataclass(frozen=True, slots=True)
class Moment:
    """What is new in one moment."""

    told: Told
    changed: list[Seen]
    ended: list[str]
    failed: list[str]
    """Those of them that were not answered well."""

    def as_told(self, tenant: str, everybody: Iterable[Seen] | None = None) -> Told:
        """As one key is told it; with `everybody`, all that is known, to who begins to look on."""
        requests = self.changed if everybody is None else everybody
        dot: Told = {"id": None, "emitted": {}}  # all that another key sees of it
        told = [one.told if one.tenant == tenant else one.told | dot for one in requests]
        over = {"ended": self.ended, "failed": self.failed, "full": everybody is not None}
        return {**self.told, "requests": told, **over}


class Overview:
    """All that is known, and what was told of it."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}
        """Requests that are under way, by what the runtime calls them."""
        self._conducted: dict[str, News] = {}
        """What each conductor told last."""
        self._worked: dict[str, News] = {}
        """What each worker told last."""

    def look(self, door: Door, answers: Mapping[str, News]) -> Moment:
        """What is new, by what some processes have answered since the last moment."""
        conductors = set[str]() if door.bridge is None else {one.name for one in door.bridge.front.conductors.values()}
        over: dict[str, Seen] = {}
        for name in conductors & answers.keys():
            over |= self._hear(name, answers[name])
        workers = {name: news for name, news in answers.items() if name not in conductors}
        self._worked |= workers
        for name, news in workers.items():
            for place in news.places:
                if (seen := self.seen.get(place.rid)) is not None:
                    seen.at[name] = (place.number, place.at)
        owners = {rid: found for found in door.timelines.live() for rid in found[1].rids}
        nobody = (None, None)
        changed = [seen for rid, seen in self.seen.items() if seen.look(*owners.get(rid, nobody))]
        told = {
            "t": time.time(),
            "phase": {"name": door.phase.name, "done": door.phase.done, "total": door.phase.total},
            "workers": self._crew(door.conditions()),
            "ops": [_op(name, op) for name, news in workers.items() for op in news.ops],
            "streams": [_stream(name, one) for name, news in workers.items() for one in news.streams],
            "transfers": [
                {"from": name, "to": one.to, "count": one.count, "seconds": one.seconds}
                for name, news in workers.items()
                for one in news.passed
            ],
            "queue": sum(news.queue for news in self._conducted.values()),
        }
        failed = [rid for rid, seen in over.items() if seen.entry is not None and seen.entry.passage.code]
        return Moment(told, changed, [*over], failed)

    def _hear(self, conductor: str, news: News) -> dict[str, Seen]:
        """A conductor has told who is under way; who is no longer."""
        self._conducted[conductor] = news
        there = {one.rid for one in news.requests}
        missing = [rid for rid, seen in self.seen.items() if seen.conductor == conductor and rid not in there]
        over = {rid: self.seen.pop(rid) for rid in missing}
        for one in reversed(news.requests):  # the oldest first
            if one.rid in self.seen:
                self.seen[one.rid].news = one
            else:
                self.seen[one.rid] = Seen(one, conductor)
        return over

    def _crew(self, conditions: Mapping[str, Condition]) -> list[Told]:
        there = {one.name: one for news in self._conducted.values() for one in news.workers}
        return [_worker(name, one, there.get(name), self._worked.get(name)) for name, one in conditions.items()]


def _worker(name: str, condition: Condition, there: WorkerNews | None, news: News | None) -> Told:
    """A worker: how its process is, as its conductor sees it, and what it holds."""
    if condition.state != "up":
        there = news = None
    counts = {} if news is None else news.counts
    pages = [sum(count for key, count in counts.items() if key.endswith(end)) for end in (".pages_used", ".pages")]
    loading = {"part": condition.part, "done": condition.done, "total": condition.total} if condition.part else None
    return {
        "name": name,
        "life": 0 if there is None else there.life,
        "host": condition.host,
        "state": condition.state if there is None else there.state,
        "loading": loading,
        "share": there.share if there is not None and there.share >= 0 else None,
        "slack": news.slack if news is not None and news.slack >= 0 else None,
        "waiting": counts.get("waiting", 0),
        "running": counts.get("running", 0),
        "requests": counts.get("requests", 0),
        "pages": pages if pages[1] else None,
    }


def _op(worker: str, op: OpNews) -> Told:
    return {
        "model": op.model,
        "walk": op.walk,
        "at": op.at,
        "worker": worker,
        "batches": op.batches,
        "calls": op.calls,
        "largest": op.largest,
        "busy": op.busy,
        "waiting": op.waiting,
    }


def _stream(worker: str, one: StreamNews) -> Told:
    return {
        "model": one.model,
        "walk": one.walk,
        "stream": one.stream,
        "worker": worker,
        "items": one.items,
        "bound": one.bound,
        "tours": one.tours,
    }
