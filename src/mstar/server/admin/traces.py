"""What a request did, everywhere: asked of every process when somebody looks, and told with one clock.

A trace is of who sent the request: another key does not see that there is one. What a process that has died knew is
lost with it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.robotics.ttl_store import tenant_name
from mstar.server.state import ServerState
from mstar.wire import messages as m
from mstar.wire.stats import Span

SPANS_TIMEOUT_S = 0.5
"""How long another process may take to tell what it knows."""


async def list_requests(exchange: HttpExchange) -> Response:
    """GET /v1/requests: the last requests of this key, the newest first."""
    entries = exchange.state.recent_requests.for_tenant(tenant_name(exchange))
    return json_response({"object": "list", "data": [entry.content for entry in entries]})


async def retrieve_trace(exchange: HttpExchange) -> Response:
    """GET /v1/requests/{id}/trace: what it did and when, for programs or (?format=chrome) for Perfetto."""
    form = exchange.request.query_params.get("format", "json")
    if form not in ("json", "chrome"):
        raise ApiError(400, "invalid_value", f"there is no format {form!r}; there are json and chrome", param="format")
    entry = _find_record(exchange)
    told = entry.content | {"spans": await collect_spans(exchange.state, entry)}
    return json_response(told if form == "json" else to_chrome_trace(told))


async def cancel_request(exchange: HttpExchange) -> Response:
    """POST /v1/requests/{id}/cancel: end it, wherever it is. Whoever reads its answer is told so."""
    entry = _find_record(exchange)
    is_running = entry.ended_at is None
    if exchange.state.bridge is not None:
        for rid in entry.rids:
            exchange.state.bridge.frontend.cancel(rid)
    return json_response({"id": entry.context.id, "cancelled": is_running})


def _find_record(exchange: HttpExchange) -> RequestRecord:
    name = exchange.request.path_params["id"]
    entry = exchange.state.recent_requests.find(tenant_name(exchange), name)
    if entry is None:
        what = f"no request {name!r} is remembered; GET /v1/requests lists those that are, by their X-Request-Id"
        raise ApiError(404, "request_not_found", what, param="id")
    return entry


# ---------------------------------------------------------------- from all processes, with one clock
async def collect_spans(state: ServerState, record: RequestRecord) -> list[dict[str, Any]]:
    """All that is known of a request, in the order of time, in seconds since it came."""
    own = Span("request", record.context.endpoint, "", 0, 0, 0.0, record.seconds)
    found = [_to_json("front", "", own, 0.0, 0)]
    asked = [(peer, rid) for peer in state.peers() for rid in record.rids]
    answers = await asyncio.gather(*(_query_spans(state, peer, rid) for peer, rid in asked))
    begun = record.started_at + record.wall_clock_offset
    for rid in record.rids:
        timelines = [
            (peer.name, told)
            for (peer, whose), told in zip(asked, answers, strict=True)
            if whose == rid and told is not None
        ]
        attempts = sorted({span.attempt for _, told in timelines for span in told.spans if span.kind != "queued"})
        for process, told in timelines:
            for span in told.spans:
                attempt = 0 if span.kind == "queued" else 1 + attempts.index(span.attempt)
                found.append(_to_json(process, rid, span, told.clock_offset - begun, attempt))
    return sorted(found, key=lambda one: (one["start"], -one["end"]))


async def _query_spans(state: ServerState, peer: m.Peer, rid: str) -> m.SpansReply | None:
    if state.bridge is None:
        return None
    asked = asyncio.wrap_future(state.bridge.frontend.query_spans(peer, rid))
    try:
        return await asyncio.wait_for(asyncio.shield(asked), SPANS_TIMEOUT_S)
    except TimeoutError:
        return None  # it is dead, or busy: the rest is told without it


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


# ---------------------------------------------------------------- for Perfetto
def to_chrome_trace(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace as trace events: each process a process, each thing that is done a thread, each emission an instant."""
    events: list[dict[str, Any]] = []
    processes: dict[str, dict[str, int]] = {}
    threads: dict[tuple[str, str, str], dict[str, int]] = {}

    def place(process: str, rid: str, name: str) -> dict[str, int]:
        if process not in processes:
            processes[process] = {"pid": len(processes) + 1}
            events.append(_name_event("process_name", process, processes[process]))
        if (process, rid, name) not in threads:
            where = threads[process, rid, name] = processes[process] | {"tid": len(threads) + 1}
            events.append(_name_event("thread_name", f"{name} {rid}".strip(), where))
        return threads[process, rid, name]

    for span in trace["spans"]:
        lane = "walks" if span["kind"] == "walk" else span["name"]
        start = max(0.0, span["start"])  # clocks of two processes differ a little
        times = {"ts": start * 1e6, "dur": max(0.0, span["end"] - start) * 1e6}
        known = {key: span[key] for key in ("walk", "number", "attempt", "calls", "busy", "waited", "batch", "text")}
        head = {"ph": "X", "name": span["name"], "cat": span["kind"], "args": known}
        events.append(head | times | place(span["process"], span["rid"], lane))
    for emission in trace["emissions"]:
        where = place("front", "", emission["kind"])
        head = {"ph": "i", "s": "t", "name": emission["kind"], "cat": "emission"}
        times = dict.fromkeys((*emission["first"], emission["last"]))
        events += [head | {"ts": when * 1e6} | where for when in times]
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"id": trace["id"], "model": trace["model"]}}


def _name_event(kind: str, name: str, where: dict[str, int]) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "args": {"name": name}} | where
