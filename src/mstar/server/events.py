"""What goes on, as a stream of events for those who look on: the studio, or anybody with curl."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response

from mstar.server.shelf import tenant_of
from mstar.server.visit import Visit, event
from mstar.server.watching import Viewer


async def events(visit: Visit) -> Response:
    """GET /v1/events: what goes on, until the client leaves."""
    return visit.events(_pour(visit))


async def _pour(visit: Visit) -> AsyncGenerator[bytes]:
    viewer, watch = Viewer(tenant_of(visit)), visit.door.watch
    watch.join(visit.door, viewer)
    try:
        while True:
            yield event(await viewer.queue.get(), "tick")
    finally:
        watch.leave(viewer)
