"""The models that are served, each with where it is served."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mstar.server.door import Door, Served
from mstar.server.visit import Visit, answered


async def catalogue(visit: Visit) -> Response:
    """GET /v1/models."""
    return answered({"object": "list", "data": [_entry(visit.door, one) for one in visit.door.served.values()]})


async def entry(visit: Visit) -> Response:
    """GET /v1/models/{model}."""
    return answered(_entry(visit.door, visit.find(visit.request.path_params["model"])))


def _entry(door: Door, served: Served) -> dict[str, Any]:
    offered = door.offers(served)
    return {
        "id": served.name,
        "object": "model",
        "created": served.since,
        "owned_by": "mstar",
        "capabilities": list(dict.fromkeys(surface.ask.__name__.lower() for surface in offered if surface.ask)),
        "surfaces": [*(surface.path for surface in offered), "/v1/generate"],
    }
