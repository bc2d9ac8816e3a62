"""Voices: which ones a model can speak with. It says so itself, with a method `voices()`; adding one is not offered."""

from __future__ import annotations

from starlette.responses import Response

from mstar.asks import Speech
from mstar.server.visit import Visit, answered


async def list_voices(visit: Visit) -> Response:
    """GET /v1/audio/voices, of one model with ?model=, else of all."""
    named = visit.request.query_params.get("model")
    chosen = [visit.find(named)] if named else visit.door.served.values()
    voices = {one.name: (one.own("voices") or tuple)() for one in chosen if Speech in one.takes}
    data = [
        {"id": voice, "object": "audio.voice", "name": voice, "model": model}
        for model, own in voices.items()
        for voice in own
    ]
    return answered({"object": "list", "data": data, "voices": [one["id"] for one in data]})
