"""The models that are served, each with where it is served and how it is."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mstar.server.admin.model_loading import model_states
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import ServedModel, ServerState


async def list_models(exchange: HttpExchange) -> Response:
    """GET /v1/models."""
    known = await model_states(exchange.state)
    served = exchange.state.served_models.values()
    return json_response(
        {"object": "list", "data": [_describe_model(exchange.state, one, known[one.name]) for one in served]}
    )


async def retrieve_model(exchange: HttpExchange) -> Response:
    """GET /v1/models/{model}."""
    served = exchange.resolve_model(exchange.request.path_params["model"])
    return json_response(_describe_model(exchange.state, served, (await model_states(exchange.state))[served.name]))


def _describe_model(state: ServerState, served_model: ServedModel, model_state: str) -> dict[str, Any]:
    offered = state.endpoints_of(served_model)
    return {
        "id": served_model.name,
        "object": "model",
        "created": served_model.created_at,
        "owned_by": "mstar",
        "capabilities": list(
            dict.fromkeys(
                surface.request_type.__name__.removesuffix("Request").lower()
                for surface in offered
                if surface.request_type
            )
        ),
        "endpoints": [*(surface.path for surface in offered), "/v1/generate"],
        "state": model_state,
    }
