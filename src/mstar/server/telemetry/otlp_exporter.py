"""Spans for OpenTelemetry, if they are asked for: when a request has ended, its timeline is pulled and exported.

One span for the request, one for each walk, and one for each op of a walk however often it was called. Nobody waits for
this: what does not fit into the queue, or what the collector does not take, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import Counter

from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.admin.traces import collect_spans
from mstar.server.state import ServerState

log = logging.getLogger("mstar.server")

MAX_QUEUED_REQUESTS = 256
"""So many requests may wait to be exported."""
EXPORT_BATCH_SIZE = 32
"""So many requests are exported at once."""
EXPORT_TIMEOUT_S = 5.0
"""How long a collector may take."""

# The names of the conventions, which are still in development: here, so that they are changed in one place.
OPERATION, PROVIDER, OUTPUT = "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.output.type"
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
ROUTE, STATUS = "http.route", "http.response.status_code"
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/realtime": "chat", "/v1/embeddings": "embeddings"}
_OUTPUTS = {"Text": "text", "Audio": "speech", "Image": "image"}


class _SpanCollector(SpanProcessor):
    """Keeps the spans that have ended until they are exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended, and is one that its trace wants."""
        if span.context is not None and span.context.trace_flags.sampled:
            self.spans.append(span)


class OtlpExporter:
    """Sends the timelines of requests to a collector. `url` is where it takes OTLP over HTTP."""

    def __init__(self, state: ServerState, url: str) -> None:
        self._state = state
        self._queue: asyncio.Queue[RequestRecord] = asyncio.Queue(MAX_QUEUED_REQUESTS)
        self._collector = _SpanCollector()
        self._exporter = OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_S)
        provider = TracerProvider(resource=Resource.create({"service.name": "mstar"}), shutdown_on_exit=False)
        provider.add_span_processor(self._collector)
        self._tracer = provider.get_tracer("mstar")
        registry = state.metrics.registry
        self._dropped = Counter("mstar_spans_dropped", "Requests whose spans were not exported", registry=registry)
        self._task: asyncio.Task[None] | None = None
        state.recent_requests.on_end = self.put

    def put(self, record: RequestRecord) -> None:
        """A request has ended, in the loop of the server."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            self._queue.put_nowait(record)
        except asyncio.QueueFull:
            self._dropped.inc()

    async def _run(self) -> None:
        """Export for as long as the server runs."""
        while True:
            entries = [await self._queue.get()]
            while len(entries) < EXPORT_BATCH_SIZE and not self._queue.empty():
                entries.append(self._queue.get_nowait())
            try:
                is_taken = await self._export(entries)
            except Exception:
                log.exception("spans of %d requests", len(entries))
                is_taken = False
            self._dropped.inc(0 if is_taken else len(entries))

    async def _export(self, entries: Sequence[RequestRecord]) -> bool:
        """Pull timelines and send them; whether the collector took them."""
        for entry in entries:
            self._record_spans(entry, await collect_spans(self._state, entry))
        told, self._collector.spans = self._collector.spans, []
        return not told or await asyncio.to_thread(self._exporter.export, told) is SpanExportResult.SUCCESS

    def _record_spans(self, record: RequestRecord, timeline: Sequence[dict[str, Any]]) -> None:
        """Make spans of what a request did."""

        def ns(seconds: float) -> int:
            return int((record.started_at + record.wall_clock_offset + seconds) * 1e9)

        given = TraceContextTextMapPropagator().extract({"traceparent": record.traceparent})
        server = self._tracer.start_span(
            record.context.endpoint, given, trace.SpanKind.SERVER, _attributes(record), start_time=ns(0.0)
        )
        if record.context.status >= 500:
            server.set_status(trace.Status(trace.StatusCode.ERROR, record.context.code))
        parents: dict[tuple[str, int, int], trace.Span] = {}
        begun: list[tuple[trace.Span, float]] = [(server, record.seconds)]
        for one in sorted(timeline, key=lambda one: one["kind"] != "walk"):  # first those in which the others are
            where = (one["rid"], one["number"], one["attempt"])
            parent = parents.get(where, server)
            if one["kind"] in ("walk", "op"):
                span = self._start_span(one, parent, ns)
                begun.append((span, one["end"]))
                if one["kind"] == "walk":
                    parents[where] = span
            elif one["kind"] != "request":
                about = {"mstar.name": one["name"], "mstar.attempt": one["attempt"], "mstar.text": one["text"]}
                about |= {"mstar.calls": one["calls"], "mstar.seconds": one["end"] - one["start"]}
                (parent if one["kind"] == "transfer" else server).add_event(one["kind"], about, ns(one["start"]))
        for span, end in begun:
            span.end(ns(end))

    def _start_span(self, span: dict[str, Any], parent: trace.Span, ns: Callable[[float], int]) -> trace.Span:
        about = {"mstar.process": span["process"], "mstar.walk": span["walk"], "mstar.attempt": span["attempt"]}
        if span["kind"] == "op":
            about |= {
                "mstar.iterations": span["calls"],
                "mstar.busy_seconds": span["busy"],
                "mstar.batch": span["batch"],
            }
        about |= {"mstar.wait_seconds": span["waited"], "mstar.text": span["text"]}
        within = trace.set_span_in_context(parent)
        return self._tracer.start_span(span["name"], within, attributes=about, start_time=ns(span["start"]))


def _attributes(record: RequestRecord) -> dict[str, Any]:
    """What the conventions want to be said of a request, as far as it is known here."""
    kinds = record.deliveries
    first = min((one.first[0] for one in kinds.values()), default=None)
    found: dict[str, Any] = {
        OPERATION: _OPERATIONS.get(record.context.endpoint, "generate_content"),
        PROVIDER: "mstar",
        REQUEST_MODEL: record.model,
        RESPONSE_MODEL: record.model,
        ROUTE: record.context.endpoint,
        STATUS: record.context.status,
        "mstar.request_id": record.context.id,
    }
    found |= {f"mstar.emissions.{kind.lower()}": one.count for kind, one in kinds.items()}
    if len(kinds) == 1 and (output := _OUTPUTS.get(next(iter(kinds)))):
        found[OUTPUT] = output
    if first is not None:
        found["mstar.time_to_first_output_seconds"] = first - record.started_at
    return found
