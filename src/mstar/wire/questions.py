"""What front ends ask of other processes for those who look on, and the answers. Nothing is decided by them."""

from __future__ import annotations

from mstar.wire.figures import KindCount, OpCount, Span
from mstar.wire.message import Message
from mstar.wire.news import At, OpNews, Passing, RequestNews, StreamNews, WorkerNews


class TakeStock(Message):
    """What do you hold?"""

    ticket: int


class Stock(Message):
    """What I hold, counted."""

    ticket: int
    counts: dict[str, int]
    ops: list[OpCount] = []
    """Of a worker: what its ops came to."""
    kinds: list[KindCount] = []
    """Of a worker: what its emissions came to."""


class TakeTimeline(Message):
    """What did this request do, and when?"""

    ticket: int
    rid: str


class Timeline(Message):
    """What it did here. `clock` is the time of day when this process's clock was 0, so that hosts can be compared."""

    ticket: int
    clock: float
    spans: list[Span]


class TakeStanding(Message):
    """Which models are up, and which rest?"""

    ticket: int


class Standing(Message):
    """How models are: up, loading or resting."""

    ticket: int
    states: dict[str, str]
    why: str = ""
    """Why what was asked for is not done, if it is not."""


class TakeNews(Message):
    """What happened since I last asked? Who has not asked for a while is taken to look on no more."""

    ticket: int


class News(Message):
    """What happened here, and how things are now."""

    ticket: int
    counts: dict[str, int] = {}
    """Of a worker: what it holds."""
    slack: float = -1.0
    """Of a worker: in how many seconds the most urgent that waits is due; below 0 if nothing is."""
    ops: list[OpNews] = []
    """Of a worker: the calls that ran, and those that wait."""
    places: list[At] = []
    """Of a worker: where in their walks requests are."""
    streams: list[StreamNews] = []
    """Of a worker: how full the streams are."""
    passed: list[Passing] = []
    """Of a worker: what it sent to others."""
    requests: list[RequestNews] = []
    """Of a conductor: those that are under way, the newest."""
    workers: list[WorkerNews] = []
    """Of a conductor: those that are there."""
    queue: int = 0
    """Of a conductor: how many requests wait for their turn."""
