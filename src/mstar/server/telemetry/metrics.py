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

from mstar.frontend.core import Deliver, RequestEnded
from mstar.requests import ActionRequest, Finish, TranscriptionRequest
from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.errors import api_error_from
from mstar.server.openai.detokenizer import to_token_ids
from mstar.server.telemetry.vllm_metrics import VllmMetrics
from mstar.wire import messages as m
from mstar.wire.slo import duration_of

_FAST_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SLOW_BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_RATIO_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Around 1, where speech is made just as fast as it is heard."""
GAPS_MS = (20, 50, 100, 200, 500)
"""Silences in the middle of speech: how long they may be for it to count as unbroken."""


class Metrics:
    """The figures of one front end."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        ProcessCollector(registry=own)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"mstar_{name}", text, labels, registry=own)

        def histogram(name: str, text: str, *labels: str, buckets: Sequence[float] = _FAST_BUCKETS_S) -> Histogram:
            return Histogram(f"mstar_{name}", text, labels, buckets=buckets, registry=own)

        # Requests of clients.
        self.requests = counter("requests", "Requests that ended", "endpoint", "status")
        self.request_duration = histogram(
            "request_duration_seconds", "How long requests took", "endpoint", buckets=_SLOW_BUCKETS_S
        )
        self.request_errors = counter("request_errors", "Requests refused or failed, by what was said", "code")
        self.requests_in_progress = Gauge("mstar_requests_in_progress", "Requests under way", registry=own)
        self.websockets_open = Gauge("mstar_websockets_open", "WebSockets under way", ["endpoint"], registry=own)
        # What models gave.
        self.responses_in_progress = Gauge(
            "mstar_responses_in_progress", "Answers that models are giving", ["model"], registry=own
        )
        self.responses = counter("responses", "Answers of models that ended, by how", "model", "reason")
        self.response_duration = histogram(
            "response_duration_seconds", "How long answers took", "model", buckets=_SLOW_BUCKETS_S
        )
        self.emissions = counter("emissions", "Emissions for clients", "model", "kind")
        self.time_to_first_output = histogram(
            "time_to_first_output_seconds", "How long the first of a kind took", "model", "kind"
        )
        self.inter_output = histogram("inter_output_seconds", "Time between two of a kind", "model", "kind")
        self.prompt_tokens = counter(
            "prompt_tokens", "Tokens of what clients asked, as models say", "model", "modality"
        )
        self.generation_tokens = counter("generation_tokens", "Tokens of Text emissions", "model")
        # Sound.
        self.audio_seconds = counter("audio_seconds", "Seconds of sound made", "model")
        self.audio_realtime_factor = histogram(
            "audio_realtime_factor",
            "Seconds that an answer took for each second of its sound",
            "model",
            buckets=_RATIO_BUCKETS,
        )
        self.audio_underrun = counter("audio_underrun_seconds", "Seconds that players had nothing to play", "model")
        self.audio_responses = counter("audio_responses", "Answers with sound that ended", "model")
        self.audio_gapless_responses = counter(
            "audio_gapless_responses", "Those without a longer silence", "model", "gap_ms"
        )
        self.transcription_audio_seconds = counter(
            "transcription_audio_seconds", "Seconds of sound to be written down", "model"
        )
        # Pictures and actions.
        self.images = counter("images", "Pictures made, without partial ones", "model")
        self.pixels = counter("pixels", "Pixels of these pictures", "model")
        self.action_duration = histogram("action_duration_seconds", "How long actions took", "model")
        self.action_deadlines = counter(
            "action_deadlines", "Actions for robots that said how long they can wait", "model"
        )
        self.action_deadline_misses = counter("action_deadline_misses", "Those that came later", "model")
        # Other processes.
        self.process_stats = Gauge("mstar_held", "What each process holds", ["process", "what"], registry=own)
        self.refreshed_at = float("-inf")
        """When the other processes were asked last."""

    def register_compat_names(self, compat: str | None) -> None:
        """Also tell figures under the names of others."""
        if compat == "vllm":
            self.registry.register(
                VllmMetrics(one for one in vars(self).values() if isinstance(one, Counter | Gauge | Histogram))
            )


class PlaybackMeter:
    """Somebody who plays sound as soon as it is there: how long they had nothing to play."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How much they were given."""
        self.underrun_s = 0.0
        self.longest_gap_s = 0.0
        self._plays_until = math.inf

    def add(self, seconds: float, now: float) -> None:
        """More sound is there."""
        gap = max(0.0, now - self._plays_until)
        self.underrun_s += gap
        self.longest_gap_s = max(self.longest_gap_s, gap)
        self._plays_until = (now if gap or not self.seconds else self._plays_until) + seconds
        self.seconds += seconds


class OutputMetrics:
    """The emissions of one kind in one answer. What is looked up for each is looked up once."""

    def __init__(self, metrics: Metrics, model: str, kind: str, started_at: float) -> None:
        self.last_at = started_at
        self.count_output = metrics.emissions.labels(model, kind).inc
        self.observe_first = metrics.time_to_first_output.labels(model, kind).observe
        self.observe_interval = metrics.inter_output.labels(model, kind).observe
        self.count_tokens = metrics.generation_tokens.labels(model).inc if kind == "Text" else None
        self.has_output = False


class ResponseMetrics:
    """The figures of one answer, from when it is asked for."""

    def __init__(self, metrics: Metrics, model: str, request: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._model = model
        self._request = request
        self._clock = clock
        self._started_at = clock()
        self._by_kind: dict[str, OutputMetrics] = {}
        self._playback = PlaybackMeter()
        self._last_output: Deliver | None = None
        """The last emission but text and sound."""
        self._is_open = True
        metrics.responses_in_progress.labels(model).inc()
        if isinstance(request, TranscriptionRequest):
            metrics.transcription_audio_seconds.labels(model).inc(len(request.audio.samples) / request.audio.rate)

    def on_output(self, event: Deliver) -> None:
        """Its client gets an emission."""
        now, name = self._clock(), event.kind
        kind = self._by_kind.get(name)
        if kind is None:
            kind = self._by_kind[name] = OutputMetrics(self._metrics, self._model, name, self._started_at)
        kind.count_output()
        (kind.observe_interval if kind.has_output else kind.observe_first)(now - kind.last_at)
        kind.last_at, kind.has_output = now, True
        if kind.count_tokens is not None:
            if not isinstance(event.value, str):
                kind.count_tokens(len(to_token_ids(event.value)))
        elif name == "Audio":
            self._playback.add(math.prod(event.value.shape) / dict(event.clock)["rate"], now)
        else:
            self._last_output = event

    def on_end(self, event: RequestEnded) -> None:
        """It has come to its end."""
        end, meters, model = event.end, self._metrics, self._model
        result = end.result.content if isinstance(end, m.RequestFinished) else None
        if isinstance(end, m.RequestRejected) or end.status != "ok":
            self.close(api_error_from(end).code)
            return
        meters.response_duration.labels(model).observe(self._clock() - self._started_at)
        if isinstance(result, Finish):
            for modality, count in result.prompt_tokens.items():
                meters.prompt_tokens.labels(model, modality).inc(count)
        self._count_audio()
        if self._last_output is not None and self._last_output.kind == "Image":
            meters.images.labels(model).inc()
            meters.pixels.labels(model).inc(math.prod(self._last_output.value.shape[:2]))
        if self._last_output is not None and self._last_output.kind == "Action":
            self._count_action(dict(self._last_output.clock)["rate"])
        self.close(result.finish_reason if isinstance(result, Finish) else "stop")

    def close(self, reason: str = "cancelled") -> None:
        """Nobody wants more of it."""
        if self._is_open:
            self._is_open = False
            self._metrics.responses_in_progress.labels(self._model).dec()
            self._metrics.responses.labels(self._model, reason).inc()

    def _count_audio(self) -> None:
        player, meters, model = self._playback, self._metrics, self._model
        if player.seconds:
            meters.audio_seconds.labels(model).inc(player.seconds)
            meters.audio_realtime_factor.labels(model).observe(
                (self._by_kind["Audio"].last_at - self._started_at) / player.seconds
            )
            meters.audio_underrun.labels(model).inc(player.underrun_s)
            meters.audio_responses.labels(model).inc()
            for gap_ms in GAPS_MS:
                meters.audio_gapless_responses.labels(model, str(gap_ms)).inc(player.longest_gap_s * 1000 <= gap_ms)

    def _count_action(self, rate: float) -> None:
        took = self._by_kind["Action"].last_at - self._started_at
        self._metrics.action_duration.labels(self._model).observe(took)
        if isinstance(self._request, ActionRequest) and self._request.delay:
            self._metrics.action_deadlines.labels(self._model).inc()
            self._metrics.action_deadline_misses.labels(self._model).inc(took > self._request.delay / rate)


class MetricsObserver:
    """Follows the answers to one request of a client. `refused` is told of each that was not taken on."""

    def __init__(
        self,
        metrics_by_rid: Mapping[str, ResponseMetrics],
        record: RequestRecord | None,
        on_rejected: Callable[[m.RequestRejected], None],
    ) -> None:
        self._metrics_by_rid = metrics_by_rid
        self._record = record
        self._on_rejected = on_rejected

    def on_output(self, event: Deliver) -> None:
        """Something is handed on."""
        self._metrics_by_rid[event.rid].on_output(event)
        if self._record is not None:
            seconds = duration_of(event.kind, event.value, dict(event.clock), self._record.context.slo)
            self._record.record_delivery(event.kind, time.monotonic(), seconds)

    def on_end(self, event: RequestEnded) -> None:
        """One of them has ended."""
        self._metrics_by_rid[event.rid].on_end(event)
        if isinstance(event.end, m.RequestRejected):
            self._on_rejected(event.end)

    def on_cancel(self, rid: str) -> None:
        """Nobody wants more of one of them."""
        self._metrics_by_rid[rid].close()
