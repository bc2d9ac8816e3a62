"""Models are unloaded and loaded: what an operator asks at `/v1/models/{model}/unload` and `/load`.

Whether a model can rest, and when its workers end, its conductor decides: see `conductor.rests`. Nobody is waited for
here: the answer tells how the model is now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response

from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import NOT_READY_RETRY_AFTER_S, ServerState
from mstar.wire import messages as m

CONDUCTOR_TIMEOUT_S = 2.0
"""How long a conductor may take to answer."""


async def unload(exchange: HttpExchange) -> Response:
    """POST /v1/models/{model}/unload: have its workers ended once nobody uses them. The next request loads it again."""
    return await _send_model_command(exchange, m.UnloadModel)


async def load(exchange: HttpExchange) -> Response:
    """POST /v1/models/{model}/load: have its workers started, if it rests."""
    return await _send_model_command(exchange, m.LoadModel)


async def _send_model_command(exchange: HttpExchange, kind: type[m.UnloadModel] | type[m.LoadModel]) -> Response:
    name = exchange.resolve_model(exchange.request.path_params["model"]).name
    if exchange.state.phase.name != "ready":
        raise ApiError(
            503, "not_ready", f"the server is {exchange.state.phase.name}", retry_after=NOT_READY_RETRY_AFTER_S
        )
    standing = await _query_model_status(exchange.state, name, lambda ticket: kind(ticket, name))
    if standing is None:
        raise ApiError(503, "not_ready", "its conductor is being started again", retry_after=NOT_READY_RETRY_AFTER_S)
    if standing.reason:
        raise ApiError(409, "cannot_unload", f"the model `{name}` cannot be unloaded: {standing.reason}", param="model")
    return json_response({"model": name, "state": standing.states[name]})


async def model_states(state: ServerState) -> dict[str, str]:
    """How each model is: up, loading or resting. All are loading while nobody knows."""
    found = dict.fromkeys(state.served_models, "loading")
    if state.bridge is not None:
        conductors = {peer: model for model, peer in state.bridge.frontend.conductors.items()}
        for standing in await asyncio.gather(
            *(_query_model_status(state, model, m.ModelStatusQuery) for model in conductors.values())
        ):
            found |= {} if standing is None else standing.states
    return found


async def _query_model_status(
    state: ServerState, model: str, make_message: Callable[[int], m.Message]
) -> m.ModelStatusReply | None:
    """Ask the conductor of a model."""
    if state.bridge is None:
        return None
    front = state.bridge.frontend
    try:
        asked = asyncio.wrap_future(front.query_model_status(front.conductors[model], make_message))
        return await asyncio.wait_for(asyncio.shield(asked), CONDUCTOR_TIMEOUT_S)  # it may still answer
    except TimeoutError:
        return None
