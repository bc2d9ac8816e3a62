"""Export and import of conversations: GET /v1/sessions/{session}, POST /v1/sessions.

A stored response and an open realtime session can be exported, by the API key that owns them. What a model reads of a
conversation is in the file: its items, the settings, and the seed of the following responses. KV caches are not: the
importing server computes them from the items, with the same result.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import Response

from mstar.requests import ChatRequest
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.realtime.imported_sessions import ImportedSession, imported_sessions
from mstar.server.realtime.open_sessions import session_not_found
from mstar.server.realtime.saved_session import parse_saved_session
from mstar.server.responses.responses import response_store
from mstar.server.responses.saved_response import restore_response, save_response
from mstar.server.sessions.model_identity import identify_model, require_same_model
from mstar.server.sessions.session_file import SessionFile, decode_session, encode_session
from mstar.server.state import ServedModel


async def export_session(exchange: HttpExchange) -> Response:
    """GET /v1/sessions/{session}: the session as a file."""
    session_id, tenant = exchange.request.path_params["session"], exchange.context.tenant_name
    if session_id.startswith("resp_"):
        stored = response_store(exchange).find(tenant, session_id)
        kind, model, session = "response", stored.builder.content["model"], save_response(stored)
    else:
        opened = exchange.state.realtime_sessions.find(tenant, session_id)
        if opened is None:
            return await _export_elsewhere(exchange, session_id)
        kind, model, session = "realtime", opened.model, msgspec.to_builtins(await opened.save())
    identity = await identify_model(exchange.resolve_model(model))
    file = SessionFile(
        kind=kind, model=identity, server_version=version("mstar-serve"), created_at=int(time.time()), session=session
    )
    headers = {"Content-Disposition": f'attachment; filename="{session_id}.json"'}
    return Response(encode_session(file), 200, headers, "application/json")


async def _export_elsewhere(exchange: HttpExchange, session_id: str) -> Response:
    """Export a session of another front end: one that can move is at any of them. Raises ApiError."""
    siblings = exchange.state.siblings
    response = None if siblings is None else await siblings.find_elsewhere(exchange.request.scope)
    if response is None:
        raise session_not_found(session_id)
    return response


async def import_session(exchange: HttpExchange) -> Response:
    """POST /v1/sessions: continue the session of a file under a new id."""
    file = decode_session(await exchange.body())
    served = exchange.resolve_model(file.model.name)
    require_same_model(file.model, await identify_model(served))
    session_id = (_import_response if file.kind == "response" else _import_realtime)(exchange, served, file.session)
    return json_response({"id": session_id, "object": "session", "kind": file.kind, "model": served.name}, 201)


def _import_response(exchange: HttpExchange, served: ServedModel, session: dict[str, Any]) -> str:
    stored = restore_response(session, served, exchange.state.id_mark)
    if not response_store(exchange).put(exchange.context.tenant_name, stored):
        message = "the conversation is too large to be stored. fix: send its items in the input of a response"
        raise ApiError(413, "too_large", message)
    return stored.builder.response_id


def _import_realtime(exchange: HttpExchange, served: ServedModel, session: dict[str, Any]) -> str:
    if ChatRequest not in served.accepted_types:
        raise ApiError(404, "endpoint_not_supported", f"the model `{served.name}` has no conversations", param="model")
    saved = parse_saved_session(session)
    store = imported_sessions(exchange.request.app, exchange.state.id_mark)
    memory = exchange.context.take_memory()
    try:
        imported = store.put(
            exchange.context.tenant_name, lambda session_id: ImportedSession(session_id, served, saved, memory)
        )
    except ApiError:
        if memory is not None:
            memory.close()
        raise
    return imported.session_id
