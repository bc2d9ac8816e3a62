"""GET /v1/traffic: every request that ends, as server-sent events (SSE) for `mstar capture`. For operators only.

| event | data |
|---|---|
| `start` | the front end, the number of front ends, Unix time |
| `request` | a line of a trace file (`mstar.cli.bench.arrivals`), with Unix time in `at` |
| `lost` | the number of requests that this client was too slow for |

The contents of requests are part of it if the client asks for them and the server was started with `--capture-text`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response

from mstar.server.admin.traffic_feed import TrafficFeed
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, sse_event

KEEPALIVE_S = 15.0
"""Seconds without a request before a comment is sent."""


async def stream_traffic(exchange: HttpExchange) -> Response:
    """GET /v1/traffic: requests that end from now on, until the client disconnects."""
    has_contents = exchange.request.query_params.get("contents", "false") == "true"
    state = exchange.state
    if has_contents and not state.captures_text:
        message = "this server does not give out contents; fix: start it with --capture-text, or leave out `contents`"
        raise ApiError(403, "contents_not_captured", message, param="contents")
    state.traffic.require_place()
    siblings = state.siblings
    front_ends = [] if siblings is None else [name for name, role in siblings.roles.items() if role == "frontend"]
    start = {
        "frontend": "" if siblings is None else siblings.own_name,
        "frontends": max(1, len(front_ends)),
        "started_at": time.time(),
        "twin": state.is_twin,
    }
    return exchange.event_stream(_events(state.traffic, start, has_contents=has_contents))


async def _events(feed: TrafficFeed, start: dict[str, Any], *, has_contents: bool) -> AsyncGenerator[bytes]:
    subscriber = feed.subscribe(has_contents=has_contents)
    try:
        yield sse_event(start, "start")
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    content = await subscriber.queue.get()
            except TimeoutError:
                yield b": \n\n"
                continue
            if subscriber.lost[0]:
                yield sse_event({"requests": subscriber.lost[0]}, "lost")
                subscriber.lost[0] = 0
            yield sse_event(content, "request")
    finally:
        feed.unsubscribe(subscriber)
