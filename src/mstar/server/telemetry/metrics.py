"""Prometheus metrics of a front end, and the observers of responses that feed them.

Response metrics are taken where an emission is handed to the client's connection: they are what the client sees, minus
the network (time to first output, inter-token latency, audio gaps). Counts of other processes come from
`process_metrics`.
"""

from __future__ import annotations

import functools
import math
import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from mstar.frontend.core import Deliver, RequestEnded
from mstar.requests import ActionRequest, Finish, TranscriptionRequest
from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.admin.traffic_feed import add_result
from mstar.server.errors import ApiError, api_error_from
from mstar.server.openai.detokenizer import count_tokens
from mstar.server.telemetry.logs import log_failure
from mstar.server.telemetry.process_metrics import ProcessMetrics
from mstar.server.telemetry.vllm_metrics import VllmMetrics
from mstar.wire import messages as m
from mstar.wire.slo import duration_of

_FAST_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SLOW_BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_RATIO_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Dense around 1, where audio is generated exactly as fast as it plays."""
MAX_RENDER_SHARE = 0.05
"""Maximum fraction of the event loop's time for rendering the metrics page."""
MAX_RENDER_BUDGET_S = 0.25
"""Maximum seconds of rendering that are saved up."""
GAPS_MS = (20, 50, 100, 200, 500)
"""Thresholds of a gapless audio response: no gap in playback is longer."""


class CachedPage:
    """A page whose rendering takes at most `MAX_RENDER_SHARE` of the time.

    A saved-up budget pays for rendering, so a page that is read now and then is always new. In a flood of reads, the
    last page is returned until the budget is positive again.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._content = b""
        self._budget_s = MAX_RENDER_BUDGET_S
        self._updated_at = clock()

    def read(self, render: Callable[[], bytes]) -> bytes:
        """Render the page, or return the last one."""
        start = self._clock()
        saved_s = self._budget_s + MAX_RENDER_SHARE * (start - self._updated_at)
        self._budget_s, self._updated_at = min(MAX_RENDER_BUDGET_S, saved_s), start
        if self._budget_s > 0 or not self._content:
            self._content = render()
            self._budget_s -= self._clock() - start
        return self._content


@functools.lru_cache(4096)
def labeled(metric: Any, *values: str) -> Any:
    """The child of a metric with these label values. `labels` itself takes a lock and checks them at each call."""
    return metric.labels(*values)


def _add_own_process(registry: CollectorRegistry) -> None:
    """Add the versions and the standard process metrics of this process."""
    ProcessCollector(registry=registry)
    try:
        own_version = version("mstar-serve")
    except PackageNotFoundError:
        own_version = "unknown"  # run from source without an installation
    build_info = Gauge("mstar_build_info", "1; the labels are versions", ["version", "python"], registry=registry)
    build_info.labels(own_version, platform.python_version()).set(1)


class OutputCounter(Counter):
    """Counter of the event loop's thread: there is an increment for each token, and it takes no lock."""

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:  # noqa: ARG002 - as its base
        """Increment the counter."""
        counter: Any = self  # the library has no types for its values
        counter._value._value += amount


class OutputHistogram(Histogram):
    """Histogram of the event loop's thread: it finds the bucket by bisection and takes no lock."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:  # noqa: ARG002 - as its base
        """Count an observation."""
        histogram: Any = self
        histogram._sum._value += amount
        histogram._buckets[bisect_left(histogram._upper_bounds, amount)]._value += 1


class Metrics:
    """All metrics of one front end, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        _add_own_process(registry)
        counter, histogram = self._counter, self._histogram
        self._add_request_metrics()
        # Responses of models.
        self.responses_in_progress = Gauge(
            "mstar_responses_in_progress", "Responses in progress", ["model"], registry=registry
        )
        self.responses = counter("responses", "Finished responses, by finish reason or error code", "model", "reason")
        self.response_duration = histogram(
            "response_duration_seconds", "Duration of successful responses", "model", buckets=_SLOW_BUCKETS_S
        )
        self.emissions = counter("emissions", "Emissions delivered to clients", "model", "kind")
        self.time_to_first_output = histogram(
            "time_to_first_output_seconds", "Time to the first emission of a kind", "model", "kind"
        )
        self.inter_output = histogram("inter_output_seconds", "Time between two emissions of a kind", "model", "kind")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens, as counted by the model", "model", "modality")
        self.generation_tokens = counter("generation_tokens", "Generated text tokens", "model")
        # Audio.
        self.audio_seconds = counter("audio_seconds", "Seconds of generated audio", "model")
        self.audio_realtime_factor = histogram(
            "audio_realtime_factor", "Generation time divided by audio duration", "model", buckets=_RATIO_BUCKETS
        )
        self.audio_underrun = counter("audio_underrun_seconds", "Seconds in which a player's buffer was empty", "model")
        self.audio_responses = counter("audio_responses", "Finished responses with audio", "model")
        self.audio_gapless_responses = counter(
            "audio_gapless_responses", "Audio responses without a longer gap", "model", "gap_ms"
        )
        self.transcription_audio_seconds = counter(
            "transcription_audio_seconds", "Seconds of audio submitted for transcription", "model"
        )
        # Images and actions.
        self.images = counter("images", "Generated images, without partial ones", "model")
        self.pixels = counter("pixels", "Pixels of generated images", "model")
        self.action_duration = histogram("action_duration_seconds", "Duration of action requests", "model")
        self.action_deadlines = counter("action_deadlines", "Action requests with a deadline", "model")
        self.action_deadline_misses = counter(
            "action_deadline_misses", "Action requests that missed their deadline", "model"
        )
        self.log_lines_dropped = Counter(  # any thread increments it
            "mstar_log_lines_dropped", "Log lines dropped because stderr was blocked", registry=registry
        )
        self.is_twin = Gauge(
            "mstar_twin", "1 if the models have no weights, so that all outputs are synthetic", registry=registry
        )
        # Other processes.
        self.processes = ProcessMetrics()
        registry.register(self.processes)
        self.page = CachedPage()
        """The page of GET /metrics."""
        self.refreshed_at = float("-inf")
        """When the other processes were queried last."""

    def _add_request_metrics(self) -> None:
        """Add the metrics of client requests."""
        registry, counter, histogram = self.registry, self._counter, self._histogram
        self.requests = counter("requests", "Finished requests", "endpoint", "status")
        self.request_duration = histogram(
            "request_duration_seconds", "Duration of requests", "endpoint", buckets=_SLOW_BUCKETS_S
        )
        self.request_errors = counter("request_errors", "Requests that were rejected or failed, by error code", "code")
        self.requests_in_progress = Gauge("mstar_requests_in_progress", "Requests in progress", registry=registry)
        self.input_memory = Gauge(
            "mstar_input_memory_bytes", "Bytes of bodies and decoded media that requests hold", registry=registry
        )
        self.websockets_open = Gauge("mstar_websockets_open", "Open WebSockets", ["endpoint"], registry=registry)
        self.realtime_sessions = Gauge(
            "mstar_realtime_sessions",
            "Realtime sessions, by whether they have a connection",
            ["state"],
            registry=registry,
        )
        self.realtime_resumes = counter("realtime_resumes", "Realtime sessions resumed over a new connection")
        self.realtime_takeovers = counter("realtime_takeovers", "Realtime sessions taken over from another server")
        self.realtime_backups = Gauge(
            "mstar_realtime_backups", "Realtime sessions of which another server has a copy", registry=registry
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return OutputCounter(f"mstar_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float] = _FAST_BUCKETS_S) -> Histogram:
        return OutputHistogram(f"mstar_{name}", text, labels, buckets=buckets, registry=self.registry)

    def register_compat_names(self, compat: str | None) -> None:
        """Also export metrics under vLLM's names, if `compat` is "vllm"."""
        if compat == "vllm":
            kinds = (Counter, Gauge, Histogram, ProcessMetrics)
            self.registry.register(VllmMetrics(metric for metric in vars(self).values() if isinstance(metric, kinds)))


class PlaybackMeter:
    """Model of a client that plays audio as soon as it arrives: counts buffer underruns."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds of audio received."""
        self.underrun_s = 0.0
        self.longest_gap_s = 0.0
        self._plays_until = math.inf

    def add(self, seconds: float, now: float) -> None:
        """Account for audio of this duration that arrives now."""
        gap = max(0.0, now - self._plays_until)
        self.underrun_s += gap
        self.longest_gap_s = max(self.longest_gap_s, gap)
        self._plays_until = (now if gap or not self.seconds else self._plays_until) + seconds
        self.seconds += seconds


class OutputMetrics:
    """Metrics of the emissions of one kind in one response. Label lookups happen once, not per emission."""

    def __init__(self, metrics: Metrics, model: str, kind: str, started_at: float) -> None:
        self.last_at = started_at
        self.count_output = labeled(metrics.emissions, model, kind).inc
        self.observe_first = labeled(metrics.time_to_first_output, model, kind).observe
        self.observe_interval = labeled(metrics.inter_output, model, kind).observe
        self.count_tokens = labeled(metrics.generation_tokens, model).inc if kind == "Text" else None
        self.has_output = False


class ResponseMetrics:
    """Metrics of one response, from the submission of its request."""

    def __init__(self, metrics: Metrics, model: str, request: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self.model = model
        self._request = request
        self._clock = clock
        self._started_at = clock()
        self._by_kind: dict[str, OutputMetrics] = {}
        self._playback = PlaybackMeter()
        self._last_output: Deliver | None = None
        """Last emission that is neither text nor audio."""
        self._is_open = True
        labeled(metrics.responses_in_progress, model).inc()
        if isinstance(request, TranscriptionRequest):
            metrics.transcription_audio_seconds.labels(model).inc(len(request.audio.samples) / request.audio.rate)

    def on_output(self, event: Deliver) -> float:
        """Count an emission that is handed to the client. Returns the time."""
        now, name = self._clock(), event.kind
        kind = self._by_kind.get(name)
        if kind is None:
            kind = self._by_kind[name] = OutputMetrics(self._metrics, self.model, name, self._started_at)
        kind.count_output()
        (kind.observe_interval if kind.has_output else kind.observe_first)(now - kind.last_at)
        kind.last_at, kind.has_output = now, True
        if kind.count_tokens is not None:
            if not isinstance(event.value, str):
                kind.count_tokens(count_tokens(event.value))
        elif name == "Audio":
            self._playback.add(math.prod(event.value.shape) / dict(event.clock)["rate"], now)
        else:
            self._last_output = event
        return now

    def on_end(self, event: RequestEnded) -> None:
        """Count the end of the response."""
        end, metrics, model = event.end, self._metrics, self.model
        result = end.result.content if isinstance(end, m.RequestFinished) else None
        if isinstance(end, m.RequestRejected) or end.status != "ok":
            self.close(api_error_from(end).code)
            return
        labeled(metrics.response_duration, model).observe(self._clock() - self._started_at)
        if isinstance(result, Finish):
            for modality, count in result.prompt_tokens.items():
                labeled(metrics.prompt_tokens, model, modality).inc(count)
        self._count_audio()
        if self._last_output is not None and self._last_output.kind == "Image":
            metrics.images.labels(model).inc()
            metrics.pixels.labels(model).inc(math.prod(self._last_output.value.shape[:2]))
        if self._last_output is not None and self._last_output.kind == "Action":
            self._count_action(dict(self._last_output.clock)["rate"])
        self.close(result.finish_reason if isinstance(result, Finish) else "stop")

    def close(self, reason: str) -> None:
        """Count the response as finished, once."""
        if self._is_open:
            self._is_open = False
            labeled(self._metrics.responses_in_progress, self.model).dec()
            labeled(self._metrics.responses, self.model, reason).inc()

    def _count_audio(self) -> None:
        playback, metrics, model = self._playback, self._metrics, self.model
        if playback.seconds:
            metrics.audio_seconds.labels(model).inc(playback.seconds)
            metrics.audio_realtime_factor.labels(model).observe(
                (self._by_kind["Audio"].last_at - self._started_at) / playback.seconds
            )
            metrics.audio_underrun.labels(model).inc(playback.underrun_s)
            metrics.audio_responses.labels(model).inc()
            for gap_ms in GAPS_MS:
                metrics.audio_gapless_responses.labels(model, str(gap_ms)).inc(
                    int(playback.longest_gap_s * 1000 <= gap_ms)
                )

    def _count_action(self, rate: float) -> None:
        seconds = self._by_kind["Action"].last_at - self._started_at
        self._metrics.action_duration.labels(self.model).observe(seconds)
        if isinstance(self._request, ActionRequest) and self._request.delay:
            self._metrics.action_deadlines.labels(self.model).inc()
            self._metrics.action_deadline_misses.labels(self.model).inc(int(seconds > self._request.delay / rate))


class MetricsObserver:
    """Observes the responses to one client request. Calls `on_rejected` for each that the conductor rejects."""

    def __init__(
        self,
        metrics_by_rid: Mapping[str, ResponseMetrics],
        record: RequestRecord | None,
        on_rejected: Callable[[m.RequestRejected], None],
    ) -> None:
        self._metrics_by_rid = metrics_by_rid
        self._running = set(metrics_by_rid)
        self._record = record
        self._on_rejected = on_rejected

    def on_output(self, event: Deliver) -> None:
        """Count an emission and record its delivery time."""
        now = self._metrics_by_rid[event.rid].on_output(event)
        if (record := self._record) is not None:
            slo, seconds = record.context.slo, None
            if event.clock or slo.tokens_per_s:  # else it has no duration
                seconds = duration_of(event.kind, event.value, dict(event.clock), slo)
            record.record_delivery(event.kind, now, seconds)
            if record.captured is not None:
                record.captured.add_output(event.kind, event.value)

    def on_end(self, event: RequestEnded) -> None:
        """Count the end of a response, and log why it failed."""
        self._metrics_by_rid[event.rid].on_end(event)
        self._release_slot_after(event.rid)
        if isinstance(event.end, m.RequestRejected):
            self._on_rejected(event.end)
        else:
            request_id = self._record.context.id if self._record is not None else ""
            if self._record is not None and event.end.error_type:
                self._record.context.record_failure(event.end.error_type, event.end.failure)
            if self._record is not None and self._record.captured is not None:
                self._record.captured.add_result(event.end.result.content)
            if self._record is not None and self._record.shape is not None:
                add_result(self._record, event.end.result.content)
            log_failure(event.end, self._metrics_by_rid[event.rid].model, request_id)

    def on_cancel(self, rid: str, error: Exception | None) -> None:
        """Count a response as cancelled, or by the error with which the server ended it."""
        self._metrics_by_rid[rid].close(error.code if isinstance(error, ApiError) else "cancelled")
        self._release_slot_after(rid)

    def _release_slot_after(self, rid: str) -> None:
        """Release the slot of the client request once all its responses have ended, this one included."""
        self._running.discard(rid)
        if not self._running and self._record is not None:
            self._record.context.release_slot()
