"""What a front end counts and times, in a registry of its own. What other processes count is asked for elsewhere.

Figures of an answer are taken where its emissions are handed to the client's connection, so they are what the client
sees, less the network.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from mstar.asks import Acting, Ending, Transcription
from mstar.server.compat import Compat
from mstar.server.refusals import refusal_of
from mstar.server.spelling import tokens_of
from mstar.server.streams import Deliver, Ended
from mstar.server.timeline import Entry
from mstar.wire import messages as m
from mstar.wire.pace import seconds_of

_FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SLOW = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_RATIO = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Around 1, where speech is made just as fast as it is heard."""
GAPS_MS = (20, 50, 100, 200, 500)
"""Silences in the middle of speech: how long they may be for it to count as unbroken."""


class Meters:
    """The figures of one front end."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        ProcessCollector(registry=own)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"mstar_{name}", text, labels, registry=own)

        def histogram(name: str, text: str, *labels: str, buckets: Sequence[float] = _FAST) -> Histogram:
            return Histogram(f"mstar_{name}", text, labels, buckets=buckets, registry=own)

        # Requests of clients.
        self.requests = counter("requests", "Requests that ended", "surface", "status")
        self.seconds = histogram("request_seconds", "How long requests took", "surface", buckets=_SLOW)
        self.refusals = counter("refusals", "Requests refused or failed, by what was said", "code")
        self.live = Gauge("mstar_live_requests", "Requests under way", registry=own)
        self.calls = Gauge("mstar_live_calls", "WebSockets under way", ["surface"], registry=own)
        # What models gave.
        self.running = Gauge("mstar_live_answers", "Answers that models are giving", ["model"], registry=own)
        self.answers = counter("answers", "Answers of models that ended, by how", "model", "reason")
        self.answer = histogram("answer_seconds", "How long answers took", "model", buckets=_SLOW)
        self.emissions = counter("emissions", "Emissions for clients", "model", "kind")
        self.first = histogram("first_emission_seconds", "How long the first of a kind took", "model", "kind")
        self.between = histogram("between_emissions_seconds", "Time between two of a kind", "model", "kind")
        self.read = counter("tokens_read", "Tokens of what clients asked, as models say", "model", "modality")
        self.written = counter("tokens_written", "Tokens of Text emissions", "model")
        # Sound.
        self.sound = counter("audio_seconds", "Seconds of sound made", "model")
        self.ratio = histogram(
            "audio_realtime_factor", "Seconds that an answer took for each second of its sound", "model", buckets=_RATIO
        )
        self.underrun = counter("audio_underrun_seconds", "Seconds that players had nothing to play", "model")
        self.spoken = counter("audio_answers", "Answers with sound that ended", "model")
        self.unbroken = counter("audio_unbroken_answers", "Those without a longer silence", "model", "gap_ms")
        self.heard = counter("transcription_audio_seconds", "Seconds of sound to be written down", "model")
        # Pictures and actions.
        self.images = counter("images", "Pictures made, without partial ones", "model")
        self.pixels = counter("pixels", "Pixels of these pictures", "model")
        self.action = histogram("action_seconds", "How long actions took", "model")
        self.deadlines = counter("action_deadlines", "Actions for robots that said how long they can wait", "model")
        self.missed = counter("action_deadlines_missed", "Those that came later", "model")
        # Other processes.
        self.held = Gauge("mstar_held", "What each process holds", ["process", "what"], registry=own)
        self.asked = float("-inf")
        """When the other processes were asked last."""

    def emulate(self, compat: str | None) -> None:
        """Also tell figures under the names of others."""
        if compat == "vllm":
            self.registry.register(
                Compat(one for one in vars(self).values() if isinstance(one, Counter | Gauge | Histogram))
            )


class Player:
    """Somebody who plays sound as soon as it is there: how long they had nothing to play."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How much they were given."""
        self.underrun = 0.0
        self.longest = 0.0
        self._until = math.inf

    def give(self, seconds: float, now: float) -> None:
        """More sound is there."""
        gap = max(0.0, now - self._until)
        self.underrun += gap
        self.longest = max(self.longest, gap)
        self._until = (now if gap or not self.seconds else self._until) + seconds
        self.seconds += seconds


class Kind:
    """The emissions of one kind in one answer. What is looked up for each is looked up once."""

    def __init__(self, meters: Meters, model: str, kind: str, begun: float) -> None:
        self.latest = begun
        self.count = meters.emissions.labels(model, kind).inc
        self.first = meters.first.labels(model, kind).observe
        self.between = meters.between.labels(model, kind).observe
        self.tokens = meters.written.labels(model).inc if kind == "Text" else None
        self.is_begun = False


class Tally:
    """The figures of one answer, from when it is asked for."""

    def __init__(self, meters: Meters, model: str, ask: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._meters = meters
        self._model = model
        self._ask = ask
        self._clock = clock
        self._begun = clock()
        self._kinds: dict[str, Kind] = {}
        self._player = Player()
        self._last: Deliver | None = None
        """The last emission but text and sound."""
        self._is_open = True
        meters.running.labels(model).inc()
        if isinstance(ask, Transcription):
            meters.heard.labels(model).inc(len(ask.sound.samples) / ask.sound.rate)

    def delivered(self, news: Deliver) -> None:
        """Its client gets an emission."""
        now, name = self._clock(), news.kind
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = Kind(self._meters, self._model, name, self._begun)
        kind.count()
        (kind.between if kind.is_begun else kind.first)(now - kind.latest)
        kind.latest, kind.is_begun = now, True
        if kind.tokens is not None:
            if not isinstance(news.value, str):
                kind.tokens(len(tokens_of(news.value)))
        elif name == "Audio":
            self._player.give(math.prod(news.value.shape) / dict(news.clock)["rate"], now)
        else:
            self._last = news

    def ended(self, news: Ended) -> None:
        """It has come to its end."""
        end, meters, model = news.end, self._meters, self._model
        result = end.result.it if isinstance(end, m.Finished) else None
        if isinstance(end, m.Refused) or end.status != "ok":
            self.close(refusal_of(end).code)
            return
        meters.answer.labels(model).observe(self._clock() - self._begun)
        if isinstance(result, Ending):
            for modality, count in result.read.items():
                meters.read.labels(model, modality).inc(count)
        self._count_sound()
        if self._last is not None and self._last.kind == "Image":
            meters.images.labels(model).inc()
            meters.pixels.labels(model).inc(math.prod(self._last.value.shape[:2]))
        if self._last is not None and self._last.kind == "Action":
            self._count_action(dict(self._last.clock)["rate"])
        self.close(result.reason if isinstance(result, Ending) else "stop")

    def close(self, reason: str = "cancelled") -> None:
        """Nobody wants more of it."""
        if self._is_open:
            self._is_open = False
            self._meters.running.labels(self._model).dec()
            self._meters.answers.labels(self._model, reason).inc()

    def _count_sound(self) -> None:
        player, meters, model = self._player, self._meters, self._model
        if player.seconds:
            meters.sound.labels(model).inc(player.seconds)
            meters.ratio.labels(model).observe((self._kinds["Audio"].latest - self._begun) / player.seconds)
            meters.underrun.labels(model).inc(player.underrun)
            meters.spoken.labels(model).inc()
            for gap_ms in GAPS_MS:
                meters.unbroken.labels(model, str(gap_ms)).inc(player.longest * 1000 <= gap_ms)

    def _count_action(self, rate: float) -> None:
        took = self._kinds["Action"].latest - self._begun
        self._meters.action.labels(self._model).observe(took)
        if isinstance(self._ask, Acting) and self._ask.delay:
            self._meters.deadlines.labels(self._model).inc()
            self._meters.missed.labels(self._model).inc(took > self._ask.delay / rate)


class Follower:
    """Follows the answers to one request of a client. `refused` is told of each that was not taken on."""

    def __init__(self, tallies: Mapping[str, Tally], entry: Entry | None, refused: Callable[[m.Refused], None]) -> None:
        self._tallies = tallies
        self._entry = entry
        self._refused = refused

    def delivered(self, news: Deliver) -> None:
        """Something is handed on."""
        self._tallies[news.rid].delivered(news)
        if self._entry is not None:
            seconds = seconds_of(news.kind, news.value, dict(news.clock), self._entry.passage.pace)
            self._entry.note(news.kind, time.monotonic(), seconds)

    def ended(self, news: Ended) -> None:
        """One of them has ended."""
        self._tallies[news.rid].ended(news)
        if isinstance(news.end, m.Refused):
            self._refused(news.end)

    def dropped(self, rid: str) -> None:
        """Nobody wants more of one of them."""
        self._tallies[rid].close()
