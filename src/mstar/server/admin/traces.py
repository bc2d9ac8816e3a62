"""Traces of requests: spans collected from all processes on demand, on one clock; also as a Chrome trace for Perfetto.

Only the tenant that sent a request and operators can see its trace. Spans of a process that has died are lost.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from mstar.frontend.response_stream import wait_reply
from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.robotics.ttl_store import tenant_name
from mstar.server.state import ServerState
from mstar.wire import messages as m
from mstar.wire.stats import Span

FRONT = "front"
"""Name of the front end in traces."""
SPANS_TIMEOUT_S = 0.5
"""Seconds to wait for the spans of another process."""


async def list_requests(exchange: HttpExchange) -> Response:
    """GET /v1/requests: the last requests of this tenant, for an operator those of all tenants, newest first."""
    recent = exchange.state.recent_requests
    records = recent.all() if exchange.context.is_operator else recent.for_tenant(tenant_name(exchange))
    data = [_describe(exchange, record) for record in records]
    if exchange.state.siblings is not None:
        data += await exchange.state.siblings.merge_lists(exchange.request.scope)
        data.sort(key=lambda record: record["started_at"], reverse=True)
    return json_response({"object": "list", "data": data})


async def retrieve_trace(exchange: HttpExchange) -> Response:
    """GET /v1/requests/{id}/trace: spans of a request as JSON, or (?format=chrome) as a Chrome trace for Perfetto."""
    trace_format = exchange.request.query_params.get("format", "json")
    if trace_format not in ("json", "chrome"):
        message = f"unknown trace format {trace_format!r}; fix: use json or chrome"
        raise ApiError(400, "invalid_value", message, param="format")
    record = _find_record(exchange, of_all_tenants=exchange.context.is_operator)
    if record is None:
        return await _find_elsewhere(exchange)
    trace = _describe(exchange, record) | {
        "spans": await collect_spans(exchange.state, record),
        "captured": _captured_text(exchange.state, record),
    }
    return json_response(trace if trace_format == "json" else to_chrome_trace(trace))


async def cancel_request(exchange: HttpExchange) -> Response:
    """POST /v1/requests/{id}/cancel: cancel a request. Its own response ends with the error `cancelled`."""
    record = _find_record(exchange)
    if record is None:
        return await _find_elsewhere(exchange)
    is_running = record.ended_at is None
    if exchange.state.bridge is not None:
        for rid in record.rids:
            exchange.state.bridge.frontend.cancel(rid)
    return json_response({"id": record.context.id, "cancelled": is_running})


def _describe(exchange: HttpExchange, record: RequestRecord) -> dict[str, Any]:
    """A record as JSON; with its tenant, if the operator of a server with several keys asks.

    The message of an error can quote the request: only the tenant that sent it gets it.
    """
    content, sender = record.content, record.context.tenant_name
    if content["error"] is not None and sender != tenant_name(exchange):
        content["error"]["message"] = ""
    is_named = exchange.context.is_operator and exchange.state.keys.is_required
    return content | ({"tenant": sender} if is_named else {})


def _captured_text(state: ServerState, record: RequestRecord) -> dict[str, Any] | None:
    return (
        None if record.captured is None else record.captured.content(state.served_models[record.model].model.detokenize)
    )


def _find_record(exchange: HttpExchange, *, of_all_tenants: bool = False) -> RequestRecord | None:
    request_id, recent = exchange.request.path_params["id"], exchange.state.recent_requests
    record = recent.find(tenant_name(exchange), request_id)
    if record is None and of_all_tenants:
        record = next((other for other in recent.all() if other.context.id == request_id), None)
    return record


async def _find_elsewhere(exchange: HttpExchange) -> Response:
    """The response of another front end that has the request. Raises ApiError if none has it."""
    siblings = exchange.state.siblings
    response = None if siblings is None else await siblings.find_elsewhere(exchange.request.scope)
    if response is None:
        request_id = exchange.request.path_params["id"]
        message = f"no recent request {request_id!r}; fix: use an id from GET /v1/requests (the X-Request-Id header)"
        raise ApiError(404, "request_not_found", message, param="id")
    return response


# ---------------------------------------------------------------- spans of all processes
async def collect_spans(state: ServerState, record: RequestRecord) -> list[dict[str, Any]]:
    """All spans of a request, ordered by time, in seconds since its start."""
    context = record.context
    # What failed elsewhere is at the span of that process.
    detail = context.failure.summary(context.error_type) if context.failure.process == FRONT else ""
    own = Span("request", context.endpoint, "", 0, 0, 0.0, record.seconds, detail=detail)
    spans = [_to_json(FRONT, "", own, 0.0, 0)]
    queries = [(peer, rid) for peer in state.peers() for rid in record.rids]
    replies = await asyncio.gather(*(_query_spans(state, peer, rid) for peer, rid in queries))
    started_at = record.started_at + record.wall_clock_offset
    for rid in record.rids:
        timelines = [
            (peer.worker, reply)
            for (peer, queried_rid), reply in zip(queries, replies, strict=True)
            if queried_rid == rid and reply is not None
        ]
        attempts = sorted({span.attempt for _, reply in timelines for span in reply.spans if span.kind != "queued"})
        for process, reply in timelines:
            for span in reply.spans:
                attempt = 0 if span.kind == "queued" else 1 + attempts.index(span.attempt)
                spans.append(_to_json(process, rid, span, reply.clock_offset - started_at, attempt))
    return sorted(spans, key=lambda span: (span["start"], -span["end"]))


async def _query_spans(state: ServerState, peer: m.Peer, rid: str) -> m.SpansReply | None:
    if state.bridge is None:
        return None
    # None if it is dead or busy: the trace is returned without its spans.
    return await wait_reply(state.bridge.frontend.query_spans(peer, rid), SPANS_TIMEOUT_S)


def _to_json(process: str, rid: str, span: Span, shift: float, attempt: int) -> dict[str, Any]:
    return {
        "process": process,
        "rid": rid,
        "kind": span.kind,
        "name": span.name,
        "walk": span.walk,
        "number": span.walk_index,
        "attempt": attempt,
        "start": span.start + shift,
        "end": span.end + shift,
        "calls": span.calls,
        "busy": span.busy_s,
        "waited": span.wait_s,
        "batch": span.max_batch_size,
        "text": span.detail,
    }


# ---------------------------------------------------------------- Chrome trace
def to_chrome_trace(trace: dict[str, Any]) -> dict[str, Any]:
    """Convert a trace to Chrome trace events: a process per process, a thread per op, an instant per emission."""
    events: list[dict[str, Any]] = []
    processes: dict[str, dict[str, int]] = {}
    threads: dict[tuple[str, str, str], dict[str, int]] = {}

    def track(process: str, rid: str, name: str) -> dict[str, int]:
        if process not in processes:
            processes[process] = {"pid": len(processes) + 1}
            events.append(_name_event("process_name", process, processes[process]))
        if (process, rid, name) not in threads:
            ids = threads[process, rid, name] = processes[process] | {"tid": len(threads) + 1}
            events.append(_name_event("thread_name", f"{name} {rid}".strip(), ids))
        return threads[process, rid, name]

    for span in trace["spans"]:
        thread = "walks" if span["kind"] == "walk" else span["name"]
        start = max(0.0, span["start"])  # clocks of two processes differ slightly
        times = {"ts": start * 1e6, "dur": max(0.0, span["end"] - start) * 1e6}
        args = {key: span[key] for key in ("walk", "number", "attempt", "calls", "busy", "waited", "batch", "text")}
        head = {"ph": "X", "name": span["name"], "cat": span["kind"], "args": args}
        events.append(head | times | track(span["process"], span["rid"], thread))
    for emission in trace["emissions"]:
        ids = track(FRONT, "", emission["kind"])
        head = {"ph": "i", "s": "t", "name": emission["kind"], "cat": "emission"}
        times = dict.fromkeys((*emission["first"], emission["last"]))
        events += [head | {"ts": when * 1e6} | ids for when in times]
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"id": trace["id"], "model": trace["model"]}}


def _name_event(kind: str, name: str, ids: dict[str, int]) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "args": {"name": name}} | ids
