"""Voice list endpoint (`/v1/audio/voices`): the voices that speech models report by their method `voices()`.

Voices cannot be added or cloned.
"""

from __future__ import annotations

from starlette.responses import Response

from mstar.requests import SpeechRequest
from mstar.server.http_exchange import HttpExchange, json_response


async def list_voices(exchange: HttpExchange) -> Response:
    """GET /v1/audio/voices?model=: voices of one model, or of all models without ?model=."""
    name = exchange.request.query_params.get("model")
    models = [exchange.resolve_model(name)] if name else exchange.state.served_models.values()
    data = [
        {"id": voice, "object": "audio.voice", "name": voice, "model": served.name}
        for served in models
        if SpeechRequest in served.accepted_types
        for voice in (served.optional_method("voices") or tuple)()
    ]
    return json_response({"object": "list", "data": data, "voices": [voice["id"] for voice in data]})
