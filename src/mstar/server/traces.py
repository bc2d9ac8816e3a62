"""What a request did, everywhere: asked of every process when somebody looks, and told with one clock.

A trace is of who sent the request: another key does not see that there is one. What a process that has died knew is
lost with it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from mstar.server.door import Door
from mstar.server.refusals import Refusal
from mstar.server.shelf import tenant_of
from mstar.server.timeline import Entry
from mstar.server.visit import Visit, answered
from mstar.wire import messages as m
from mstar.wire.figures import Span

ANSWER_S = 0.5
"""How long another process may take to tell what it knows."""


async def recent(visit: Visit) -> Response:
    """GET /v1/requests: the last requests of this key, the newest first."""
    entries = visit.door.timelines.of(tenant_of(visit))
    return answered({"object": "list", "data": [entry.content for entry in entries]})


async def trace(visit: Visit) -> Response:
    """GET /v1/requests/{id}/trace: what it did and when, for programs or (?format=chrome) for Perfetto."""
    form = visit.request.query_params.get("format", "json")
    if form not in ("json", "chrome"):
        raise Refusal(400, "invalid_value", f"there is no format {form!r}; there are json and chrome", param="format")
    entry = _find(visit)
    told = entry.content | {"spans": await spans(visit.door, entry)}
    return answered(told if form == "json" else chrome(told))


async def cancel(visit: Visit) -> Response:
    """POST /v1/requests/{id}/cancel: end it, wherever it is. Whoever reads its answer is told so."""
    entry = _find(visit)
    is_running = entry.ended is None
    if visit.door.bridge is not None:
        for rid in entry.rids:
            visit.door.bridge.front.cancel(rid)
    return answered({"id": entry.passage.id, "cancelled": is_running})


def _find(visit: Visit) -> Entry:
    name = visit.request.path_params["id"]
    entry = visit.door.timelines.find(tenant_of(visit), name)
    if entry is None:
        what = f"no request {name!r} is remembered; GET /v1/requests lists those that are, by their X-Request-Id"
        raise Refusal(404, "request_not_found", what, param="id")
    return entry


# ---------------------------------------------------------------- from all processes, with one clock
async def spans(door: Door, entry: Entry) -> list[dict[str, Any]]:
    """All that is known of a request, in the order of time, in seconds since it came."""
    own = Span("request", entry.passage.surface, "", 0, 0, 0.0, entry.seconds)
    found = [_told("front", "", own, 0.0, 0)]
    asked = [(peer, rid) for peer in door.peers() for rid in entry.rids]
    answers = await asyncio.gather(*(_ask(door, peer, rid) for peer, rid in asked))
    begun = entry.begun + entry.clock
    for rid in entry.rids:
        timelines = [
            (peer.name, told)
            for (peer, whose), told in zip(asked, answers, strict=True)
            if whose == rid and told is not None
        ]
        attempts = sorted({span.attempt for _, told in timelines for span in told.spans if span.what != "queued"})
        for process, told in timelines:
            for span in told.spans:
                attempt = 0 if span.what == "queued" else 1 + attempts.index(span.attempt)
                found.append(_told(process, rid, span, told.clock - begun, attempt))
    return sorted(found, key=lambda one: (one["start"], -one["end"]))


async def _ask(door: Door, peer: m.Peer, rid: str) -> m.Timeline | None:
    if door.bridge is None:
        return None
    asked = asyncio.wrap_future(door.bridge.front.take_timeline(peer, rid))
    try:
        return await asyncio.wait_for(asyncio.shield(asked), ANSWER_S)
    except TimeoutError:
        return None  # it is dead, or busy: the rest is told without it


def _told(process: str, rid: str, span: Span, shift: float, attempt: int) -> dict[str, Any]:
    return {
        "process": process,
        "rid": rid,
        "what": span.what,
        "name": span.name,
        "walk": span.walk,
        "number": span.number,
        "attempt": attempt,
        "start": span.start + shift,
        "end": span.end + shift,
        "calls": span.calls,
        "busy": span.busy,
        "waited": span.waited,
        "batch": span.batch,
        "text": span.text,
    }


# ---------------------------------------------------------------- for Perfetto
def chrome(told: dict[str, Any]) -> dict[str, Any]:
    """A trace as trace events: each process a process, each thing that is done a thread, each emission an instant."""
    events: list[dict[str, Any]] = []
    processes: dict[str, dict[str, int]] = {}
    threads: dict[tuple[str, str, str], dict[str, int]] = {}

    def place(process: str, rid: str, name: str) -> dict[str, int]:
        if process not in processes:
            processes[process] = {"pid": len(processes) + 1}
            events.append(_named("process_name", process, processes[process]))
        if (process, rid, name) not in threads:
            where = threads[process, rid, name] = processes[process] | {"tid": len(threads) + 1}
            events.append(_named("thread_name", f"{name} {rid}".strip(), where))
        return threads[process, rid, name]

    for span in told["spans"]:
        lane = "walks" if span["what"] == "walk" else span["name"]
        start = max(0.0, span["start"])  # clocks of two processes differ a little
        times = {"ts": start * 1e6, "dur": max(0.0, span["end"] - start) * 1e6}
        known = {key: span[key] for key in ("walk", "number", "attempt", "calls", "busy", "waited", "batch", "text")}
        head = {"ph": "X", "name": span["name"], "cat": span["what"], "args": known}
        events.append(head | times | place(span["process"], span["rid"], lane))
    for emission in told["emissions"]:
        where = place("front", "", emission["kind"])
        head = {"ph": "i", "s": "t", "name": emission["kind"], "cat": "emission"}
        times = dict.fromkeys((*emission["first"], emission["last"]))
        events += [head | {"ts": when * 1e6} | where for when in times]
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"id": told["id"], "model": told["model"]}}


def _named(what: str, name: str, where: dict[str, int]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "args": {"name": name}} | where
