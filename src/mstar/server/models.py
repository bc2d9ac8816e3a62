"""The models that are served, each with where it is served and how it is."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mstar.server.door import Door, Served
from mstar.server.rest import states
from mstar.server.visit import Visit, answered


async def catalogue(visit: Visit) -> Response:
    """GET /v1/models."""
    known = await states(visit.door)
    served = visit.door.served.values()
    return answered({"object": "list", "data": [_entry(visit.door, one, known[one.name]) for one in served]})


async def entry(visit: Visit) -> Response:
    """GET /v1/models/{model}."""
    served = visit.find(visit.request.path_params["model"])
    return answered(_entry(visit.door, served, (await states(visit.door))[served.name]))


def _entry(door: Door, served: Served, state: str) -> dict[str, Any]:
    offered = door.offers(served)
    return {
        "id": served.name,
        "object": "model",
        "created": served.since,
        "owned_by": "mstar",
        "capabilities": list(dict.fromkeys(surface.ask.__name__.lower() for surface in offered if surface.ask)),
        "surfaces": [*(surface.path for surface in offered), "/v1/generate"],
        "state": state,
    }
