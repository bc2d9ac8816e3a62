"""What goes on, as a stream of events for those who look on: the studio, or anybody with curl."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response

from mstar.server.admin.live_feed import Subscriber
from mstar.server.http_exchange import HttpExchange, sse_event
from mstar.server.robotics.ttl_store import tenant_name


async def stream_events(exchange: HttpExchange) -> Response:
    """GET /v1/events: what goes on, until the client leaves."""
    return exchange.event_stream(_event_chunks(exchange))


async def _event_chunks(exchange: HttpExchange) -> AsyncGenerator[bytes]:
    viewer, watch = Subscriber(tenant_name(exchange)), exchange.state.live_feed
    watch.subscribe(exchange.state, viewer)
    try:
        while True:
            yield sse_event(await viewer.queue.get(), "tick")
    finally:
        watch.unsubscribe(viewer)
