"""GET /v1/events: the live feed as server-sent events (SSE), for the studio and for curl."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response

from mstar.server.admin.live_feed import MAX_SUBSCRIBERS, LiveFeed, Subscriber
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, sse_event
from mstar.server.robotics.ttl_store import tenant_name

RETRY_AFTER_S = 5.0
"""Retry-After, in seconds, for a tenant with too many event streams."""


async def stream_events(exchange: HttpExchange) -> Response:
    """GET /v1/events: changes of the cluster state, until the client disconnects."""
    subscriber = Subscriber(tenant_name(exchange))
    if exchange.state.live_feed.count(subscriber.tenant) >= MAX_SUBSCRIBERS:
        message = f"this API key has {MAX_SUBSCRIBERS} event streams; fix: close one of them first"
        raise ApiError(429, "too_many_streams", message, retry_after=RETRY_AFTER_S)
    return exchange.event_stream(_event_chunks(exchange.state.live_feed, subscriber))


async def _event_chunks(live_feed: LiveFeed, subscriber: Subscriber) -> AsyncGenerator[bytes]:
    live_feed.subscribe(subscriber)
    try:
        while True:
            yield sse_event(await subscriber.queue.get(), "tick")
    finally:
        live_feed.unsubscribe(subscriber)
