"""GET /v1/events: the live feed as server-sent events (SSE), for the studio and for curl."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response

from mstar.server.admin.live_feed import Subscriber
from mstar.server.http_exchange import HttpExchange, sse_event
from mstar.server.robotics.ttl_store import tenant_name


async def stream_events(exchange: HttpExchange) -> Response:
    """GET /v1/events: changes of the cluster state, until the client disconnects."""
    return exchange.event_stream(_event_chunks(exchange))


async def _event_chunks(exchange: HttpExchange) -> AsyncGenerator[bytes]:
    subscriber, live_feed = Subscriber(tenant_name(exchange)), exchange.state.live_feed
    live_feed.subscribe(subscriber)
    try:
        while True:
            yield sse_event(await subscriber.queue.get(), "tick")
    finally:
        live_feed.unsubscribe(subscriber)
