"""OTLP exporter: collects the spans of each finished request and sends them to an OpenTelemetry collector.

One span for the request, one for each walk, and one for each op of a walk, however often it was called. Export runs in
the background: if the queue is full or the collector fails, spans are dropped and counted
(`mstar_spans_dropped_total`).
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
"""Maximum number of requests queued for export."""
EXPORT_BATCH_SIZE = 32
"""Maximum number of requests per export."""
EXPORT_TIMEOUT_S = 5.0
"""Seconds to wait for the collector."""

# OpenTelemetry semantic conventions for generative AI. They are still in development, so all names are here.
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
OUTPUT = "gen_ai.output.type"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
ROUTE = "http.route"
STATUS = "http.response.status_code"
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/realtime": "chat",
    "/v1/embeddings": "embeddings",
}
_OUTPUTS = {"Text": "text", "Audio": "speech", "Image": "image"}


class _SpanCollector(SpanProcessor):
    """Buffers finished spans until they are exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Buffer a finished span, if its trace is sampled."""
        if span.context is not None and span.context.trace_flags.sampled:
            self.spans.append(span)


class OtlpExporter:
    """Exports the spans of requests. `url` is the OTLP/HTTP endpoint of the collector."""

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
        """Queue a finished request. Called in the event loop of the server."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            self._queue.put_nowait(record)
        except asyncio.QueueFull:
            self._dropped.inc()

    async def _run(self) -> None:
        """Export until the server ends."""
        while True:
            records = [await self._queue.get()]
            while len(records) < EXPORT_BATCH_SIZE and not self._queue.empty():
                records.append(self._queue.get_nowait())
            try:
                is_exported = await self._export(records)
            except Exception:
                log.exception("span export failed for %d requests", len(records))
                is_exported = False
            self._dropped.inc(0 if is_exported else len(records))

    async def _export(self, records: Sequence[RequestRecord]) -> bool:
        """Collect spans and send them; return whether the collector accepted them."""
        for record in records:
            self._record_spans(record, await collect_spans(self._state, record))
        spans, self._collector.spans = self._collector.spans, []
        return not spans or await asyncio.to_thread(self._exporter.export, spans) is SpanExportResult.SUCCESS

    def _record_spans(self, record: RequestRecord, timeline: Sequence[dict[str, Any]]) -> None:
        """Convert the timeline of a request to OpenTelemetry spans."""

        def ns(seconds: float) -> int:
            return int((record.started_at + record.wall_clock_offset + seconds) * 1e9)

        parent_context = TraceContextTextMapPropagator().extract({"traceparent": record.traceparent})
        server = self._tracer.start_span(
            record.context.endpoint, parent_context, trace.SpanKind.SERVER, _attributes(record), start_time=ns(0.0)
        )
        if record.context.status >= 500:
            server.set_status(trace.Status(trace.StatusCode.ERROR, record.context.code))
        parents: dict[tuple[str, int, int], trace.Span] = {}
        started: list[tuple[trace.Span, float]] = [(server, record.seconds)]
        for entry in sorted(timeline, key=lambda entry: entry["kind"] != "walk"):  # walks first: they are parents
            walk = (entry["rid"], entry["number"], entry["attempt"])
            parent = parents.get(walk, server)
            if entry["kind"] in ("walk", "op"):
                span = self._start_span(entry, parent, ns)
                started.append((span, entry["end"]))
                if entry["kind"] == "walk":
                    parents[walk] = span
            elif entry["kind"] != "request":
                attributes = {
                    "mstar.name": entry["name"],
                    "mstar.attempt": entry["attempt"],
                    "mstar.text": entry["text"],
                }
                attributes |= {"mstar.calls": entry["calls"], "mstar.seconds": entry["end"] - entry["start"]}
                (parent if entry["kind"] == "transfer" else server).add_event(
                    entry["kind"], attributes, ns(entry["start"])
                )
        for span, end in started:
            span.end(ns(end))

    def _start_span(self, span: dict[str, Any], parent: trace.Span, ns: Callable[[float], int]) -> trace.Span:
        attributes = {"mstar.process": span["process"], "mstar.walk": span["walk"], "mstar.attempt": span["attempt"]}
        if span["kind"] == "op":
            attributes |= {
                "mstar.iterations": span["calls"],
                "mstar.busy_seconds": span["busy"],
                "mstar.batch": span["batch"],
            }
        attributes |= {"mstar.wait_seconds": span["waited"], "mstar.text": span["text"]}
        context = trace.set_span_in_context(parent)
        return self._tracer.start_span(span["name"], context, attributes=attributes, start_time=ns(span["start"]))


def _attributes(record: RequestRecord) -> dict[str, Any]:
    """Attributes of the server span."""
    deliveries = record.deliveries
    first = min((times.first[0] for times in deliveries.values()), default=None)
    attributes: dict[str, Any] = {
        OPERATION: _OPERATIONS.get(record.context.endpoint, "generate_content"),
        PROVIDER: "mstar",
        REQUEST_MODEL: record.model,
        RESPONSE_MODEL: record.model,
        ROUTE: record.context.endpoint,
        STATUS: record.context.status,
        "mstar.request_id": record.context.id,
    }
    attributes |= {f"mstar.emissions.{kind.lower()}": times.count for kind, times in deliveries.items()}
    if len(deliveries) == 1 and (output := _OUTPUTS.get(next(iter(deliveries)))):
        attributes[OUTPUT] = output
    if first is not None:
        attributes["mstar.time_to_first_output_seconds"] = first - record.started_at
    return attributes
