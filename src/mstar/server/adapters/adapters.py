"""GET and POST /v1/adapters, DELETE /v1/adapters/{adapter}: LoRA adapters, listed, loaded and unloaded.

A request uses an adapter by the model name `MODEL:ADAPTER`. Loading runs a short request with the adapter, so that a
worker rejects one that does not fit the network; other workers load it with their first request. Unloading ends its use
by new requests; running ones finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field
from starlette.responses import Response

from mstar.errors import LoadError, format_names, suggest_name
from mstar.nn.lm.adapters.peft_folder import open_adapter
from mstar.requests import Adapter, ChatRequest
from mstar.server.adapters.registry import adapted_component
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.openai.schema import MAX_NAME_CHARS, Name, StrictModel
from mstar.server.state import ServedModel, ServerState

MAX_PATH_CHARS = 4096
MAX_BODY_BYTES = 64 << 10


class AdapterBody(StrictModel):
    """Body of POST /v1/adapters."""

    name: Name
    path: str = Field(min_length=1, max_length=MAX_PATH_CHARS)
    """Folder in the PEFT layout, on every host with a worker of the model."""
    model: str = Field(default="", max_length=MAX_NAME_CHARS)
    """The base model; it can be left out if only one model can have adapters."""


async def list_adapters(exchange: HttpExchange) -> Response:
    """GET /v1/adapters."""
    state = exchange.state
    data = [
        describe_adapter(served.with_adapter(adapter))
        for served in state.served_models.values()
        for adapter in state.adapters.of_model(served.name).values()
    ]
    return json_response({"object": "list", "data": data})


async def load_adapter(exchange: HttpExchange) -> Response:
    """POST /v1/adapters."""
    body = await exchange.read_json(AdapterBody)
    state, served = exchange.state, _base_model(exchange.state, body.model)
    try:
        adapter = await asyncio.to_thread(open_adapter, body.name, body.path)
    except LoadError as error:
        raise ApiError(400, "invalid_adapter", str(error), param="path") from error
    _reject_conflict(served, state.adapters.get(served.name, adapter.name) or adapter, adapter)
    await _try_adapter(exchange, served.with_adapter(adapter))
    _reject_conflict(served, state.adapters.add(served.name, adapter), adapter)
    return json_response(describe_adapter(served.with_adapter(adapter)), 201)


async def unload_adapter(exchange: HttpExchange) -> Response:
    """DELETE /v1/adapters/{adapter}, with an id as GET lists it: MODEL:ADAPTER."""
    state, adapter_id = exchange.state, str(exchange.request.path_params["adapter"])
    model, _, name = adapter_id.rpartition(":")
    if state.adapters.remove(model, name) is None:
        adapter_id = adapter_id[: 2 * MAX_NAME_CHARS]  # suggest_name is slow for long names
        known = [f"{base}:{one}" for base in state.served_models for one in state.adapters.of_model(base)]
        message = f"no adapter is called `{adapter_id}`{suggest_name(adapter_id, known)}; there are"
        raise ApiError(404, "adapter_not_found", f"{message} {format_names(known)}", param="adapter")
    return json_response({"id": adapter_id, "object": "adapter", "deleted": True})


def describe_adapter(served: ServedModel) -> dict[str, Any]:
    """An adapter in a response. Its folder is not shown: clients see no path of the server."""
    assert served.adapter is not None, "of a model with an adapter"
    name, checksum = served.adapter.name, served.adapter.checksum
    return {"id": served.name, "object": "adapter", "model": served.base_name, "name": name, "checksum": checksum}


def _base_model(state: ServerState, name: str) -> ServedModel:
    """The model to load an adapter for: the one with this name, or the only one that can have adapters."""
    known = [one for one, served in state.served_models.items() if adapted_component(served.model) is not None]
    name = name or (known[0] if len(known) == 1 else "")
    if not name:
        message = f"no model is given, and {format_names(known)} can have adapters. fix: set `model`"
        raise ApiError(400, "invalid_value", message, param="model")
    if name not in known:
        message = f"the model `{name}` cannot have adapters{suggest_name(name, known)}; {format_names(known)} can"
        raise ApiError(404, "model_not_found", message, param="model")
    return state.served_models[name]


def _reject_conflict(served: ServedModel, present: Adapter, adapter: Adapter) -> None:
    if present != adapter:
        message = f"the adapter `{served.name}:{adapter.name}` is loaded from other files"
        fix = "unload it first, or use another name"
        raise ApiError(409, "adapter_exists", f"{message}. fix: {fix}", param="name")


async def _try_adapter(exchange: HttpExchange, served: ServedModel) -> None:
    """Run a short request with an adapter. Raises ApiError if it does not fit the network."""
    warmup_requests = served.optional_method("warmup_requests")
    requests: Sequence[Any] = () if warmup_requests is None else warmup_requests()
    for request in requests[:1]:
        if isinstance(request, ChatRequest):
            sampling = replace(request.sampling, adapter=served.adapter)
            async for _ in exchange.start_requests(served, replace(request, sampling=sampling)):
                pass  # until it ends, or raises its error
