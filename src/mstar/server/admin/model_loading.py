"""POST /v1/models/{model}/load and /unload: start and stop the workers of a model.

The conductor decides whether a model can be unloaded and when its workers stop (`conductor.scaling.model_loading`).
The response does not wait for that: it returns the current state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response

from mstar.frontend.response_stream import wait_reply
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import NOT_READY_RETRY_AFTER_S, ServerState
from mstar.wire import messages as m

CONDUCTOR_TIMEOUT_S = 2.0
"""Seconds to wait for a conductor."""


async def unload(exchange: HttpExchange) -> Response:
    """POST /v1/models/{model}/unload: stop its workers once they are idle. The next request loads it again."""
    return await _send_model_command(exchange, m.UnloadModel)


async def load(exchange: HttpExchange) -> Response:
    """POST /v1/models/{model}/load: start its workers, if it is unloaded."""
    return await _send_model_command(exchange, m.LoadModel)


async def _send_model_command(exchange: HttpExchange, kind: type[m.UnloadModel] | type[m.LoadModel]) -> Response:
    served = exchange.resolve_model(exchange.request.path_params["model"])
    name = served.name
    if served.adapter is not None:
        message = f"`{name}` is an adapter of the model `{served.base_name}`. fix: use /v1/adapters"
        raise ApiError(400, "invalid_value", message, param="model")
    if exchange.state.phase.name != "ready":
        raise ApiError(
            503, "not_ready", f"the server is {exchange.state.phase.name}", retry_after=NOT_READY_RETRY_AFTER_S
        )
    status = await _query_model_status(exchange.state, name, lambda correlation_id: kind(correlation_id, name))
    if status is None:
        raise ApiError(503, "not_ready", "the conductor is restarting", retry_after=NOT_READY_RETRY_AFTER_S)
    if status.reason:
        raise ApiError(409, "cannot_unload", f"the model `{name}` cannot be unloaded: {status.reason}", param="model")
    return json_response({"model": name, "state": status.states[name]})


async def model_states(state: ServerState) -> dict[str, str]:
    """State of each model: loaded, loading, failing or unloaded. A model whose conductor does not answer is loading."""
    states = dict.fromkeys(state.served_models, "loading")
    if state.bridge is not None:
        conductors = {peer: model for model, peer in state.bridge.frontend.conductors.items()}
        for status in await asyncio.gather(
            *(_query_model_status(state, model, m.ModelStatusQuery) for model in conductors.values())
        ):
            states |= {} if status is None else status.states
    return states


async def _query_model_status(
    state: ServerState, model: str, make_message: Callable[[int], m.Message]
) -> m.ModelStatusReply | None:
    """Query the conductor of a model; None if it does not answer in time."""
    if state.bridge is None:
        return None
    frontend = state.bridge.frontend
    return await wait_reply(frontend.query_model_status(frontend.conductors[model], make_message), CONDUCTOR_TIMEOUT_S)
