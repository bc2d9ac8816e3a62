"""Open-loop request arrivals, and what each client received and when.

The clients are in the serving process; there is no HTTP between. A chunk is on time if the client has not yet played
all chunks before it; the first one, if it comes within `TTFT_S`.

Workload: English sentences of 2 to 20 words, one chunk each. Answers have 1 to 3 of them, readings 12 to 30.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mstar.cli.bench.metrics import chunks_on_time
from mstar.frontend.actor import FrontendActor
from mstar.frontend.core import AwaitingInput, Deliver, RequestEnded
from mstar.requests import SpeechRequest
from mstar.sim.capacity_sim import ClientResult
from mstar.wire import messages as m
from mstar.wire.slo import Slo, duration_of

TTFT_S = 0.5
TIMEOUT_S = 60.0
"""Seconds to wait for the last streams."""


@dataclass(slots=True)
class Arrival:
    """A request that will come."""

    at: float
    request: Any
    model: str = "model"
    slo: Slo = field(default_factory=Slo)


@dataclass(eq=False, slots=True)
class StreamResult(ClientResult):
    """What one client got, and whether that was in time."""

    @property
    def first_s(self) -> float:
        """Seconds until the first chunk."""
        return self.chunks[0][0] - self.submitted_at

    def on_time(self, tolerance: float = 0.0, first_s: float = TTFT_S) -> list[bool]:
        """Of each chunk, whether it was."""
        if not self.chunks:
            return [False]
        return [self.first_s <= first_s, *chunks_on_time(self.chunks, tolerance)]


def poisson(rate: float, seconds: float, draw: Callable[[random.Random], Any], seed: int) -> list[Arrival]:
    """Poisson arrivals at this rate."""
    return bursty(rate, seconds, draw, seed, spread=1.0)


def bursty(
    rate: float, seconds: float, draw: Callable[[random.Random], Any], seed: int, *, spread: float = 2.0
) -> list[Arrival]:
    """The same in bursts: `spread` is how much the times between two differ, as a part of their mean."""
    drawn, at, results, shape = random.Random(seed), 0.0, list[Arrival](), 1 / spread**2
    while (at := at + drawn.gammavariate(shape, 1 / (rate * shape))) < seconds:
        results.append(Arrival(at, draw(drawn)))
    return results


def play(front: FrontendActor, arrivals: Iterable[Arrival]) -> list[StreamResult]:
    """Have them come at their times; what each got, when all have ended."""
    received, ends = list[StreamResult](), list[threading.Event]()
    begun = time.monotonic()
    for arrival in arrivals:
        time.sleep(max(0.0, begun + arrival.at - time.monotonic()))
        one, end = StreamResult(time.monotonic()), threading.Event()
        received.append(one)
        ends.append(end)
        submit = m.Submit(front.new_rid(), arrival.model, m.Value(arrival.request), slo=arrival.slo)
        front.submit(submit, _make_listener(one, end, arrival.slo))
    for end in ends:
        end.wait(TIMEOUT_S)
    return received


def _make_listener(
    stream: StreamResult, end: threading.Event, pace: Slo
) -> Callable[[Deliver | AwaitingInput | RequestEnded], None]:
    def listen(event: Deliver | AwaitingInput | RequestEnded) -> None:
        now = time.monotonic()
        if isinstance(event, Deliver):
            seconds = duration_of(event.kind, event.value, dict(event.clock), pace)
            stream.chunks.append((now, seconds or 0.0))
            stream.kinds.append(event.kind)
        elif isinstance(event, RequestEnded):
            stream.ended_at = now
            stream.status = event.end.status if isinstance(event.end, m.RequestFinished) else str(event.end.status)
            end.set()

    return listen


# ---------------------------------------------------------------- what is said
SENTENCES = (
    "Good morning.",
    "The train to the coast leaves from platform four.",
    "It was a bright cold day in April, and nobody on the beach had brought a coat.",
    "She opened the letter, read it twice, and put it back into the drawer without a word.",
    "Please turn left at the next corner.",
    "By the time the rain had stopped, the whole garden smelled of earth and mint.",
    "Nobody knew how the clock had come to stand in the hall.",
    "Wait here.",
    "He counted the steps to the tower, as he did every evening, and there was one more than the day before.",
    "We will call you when your table is ready.",
)
SHORT, LONG = (1, 3), (12, 30)
"""How many sentences an answer has, and a reading."""
READING_SHARE = 0.25
"""This part of all that is said is a reading."""


def speech(drawn: random.Random) -> SpeechRequest:
    """An answer or a reading."""
    least, most = LONG if drawn.random() < READING_SHARE else SHORT
    return SpeechRequest(
        " ".join(drawn.choice(SENTENCES) for _ in range(drawn.randint(least, most))), seed=drawn.randrange(99)
    )


def share_on_time(streams: Sequence[StreamResult], tolerance: float = 0.0) -> float:
    """The share of all chunks."""
    results = [one for each in streams for one in each.on_time(tolerance)]
    if not results:
        raise RuntimeError("no chunk was due in this round: the measured capacity is too low for its duration")
    return sum(results) / len(results)
