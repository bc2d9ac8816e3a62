"""Model list endpoints (OpenAI `/v1/models`), with capabilities, endpoints, loading state, devices and determinism."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mstar.server.admin.model_loading import model_states
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import ServedModel, ServerState
from mstar.server.status import ModelReadiness, component_devices, model_nondeterminism


async def list_models(exchange: HttpExchange) -> Response:
    """GET /v1/models."""
    state = exchange.state
    states, readiness = await model_states(state), state.model_readiness()
    served_models = [
        one
        for served in state.served_models.values()
        for one in (served, *map(served.with_adapter, state.adapters.of_model(served.name).values()))
    ]
    data = [
        _describe_model(state, served, states[served.base_name], readiness[served.base_name])
        for served in served_models
    ]
    return json_response({"object": "list", "data": data})


async def retrieve_model(exchange: HttpExchange) -> Response:
    """GET /v1/models/{model}."""
    served = exchange.resolve_model(exchange.request.path_params["model"])
    state, name = exchange.state, served.base_name
    states, readiness = await model_states(state), state.model_readiness()
    return json_response(_describe_model(state, served, states[name], readiness[name]))


def _describe_model(
    state: ServerState, served_model: ServedModel, model_state: str, readiness: ModelReadiness
) -> dict[str, Any]:
    endpoints = state.endpoints_of(served_model)
    components = served_model.model.components()
    type_names = (endpoint.request_type.__name__ for endpoint in endpoints if endpoint.request_type is not None)
    statuses = state.process_statuses()
    reasons = model_nondeterminism(served_model.base_name, components, statuses)
    capabilities = dict.fromkeys(name.removesuffix("Request").lower() for name in type_names)
    return {
        "id": served_model.name,
        "object": "model",
        "created": served_model.created_at,
        "owned_by": "mstar twin" if state.is_twin else "mstar",
        "twin": state.is_twin,
        "capabilities": list(capabilities),
        "endpoints": [*(endpoint.path for endpoint in endpoints), "/v1/generate"],
        "state": model_state,
        "ready": readiness.is_ready,
        "devices": component_devices(served_model.base_name, components, statuses),
        "deterministic": None if reasons is None else not reasons,
        "nondeterminism": reasons or {},
        "parent": None if served_model.adapter is None else served_model.base_name,
    }
