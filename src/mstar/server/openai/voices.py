"""Voices: which ones a model can speak with. It says so itself, with a method `voices()`; adding one is not offered."""

from __future__ import annotations

from starlette.responses import Response

from mstar.requests import SpeechRequest
from mstar.server.http_exchange import HttpExchange, json_response


async def list_voices(exchange: HttpExchange) -> Response:
    """GET /v1/audio/voices, of one model with ?model=, else of all."""
    named = exchange.request.query_params.get("model")
    chosen = [exchange.resolve_model(named)] if named else exchange.state.served_models.values()
    voices = {
        one.name: (one.optional_method("voices") or tuple)() for one in chosen if SpeechRequest in one.accepted_types
    }
    data = [
        {"id": voice, "object": "audio.voice", "name": voice, "model": model}
        for model, own in voices.items()
        for voice in own
    ]
    return json_response({"object": "list", "data": data, "voices": [one["id"] for one in data]})
