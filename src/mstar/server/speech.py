"""Speech: a text in, sound out, as it is made. As one file that grows, or as events.

How a text is said is the model's business; how sound becomes bytes, `mstar.media.audio`'s.
"""

from __future__ import annotations

import asyncio
import base64
import math
import secrets
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from pydantic import Field
from starlette.responses import Response

from mstar.asks import Ending, Speech
from mstar.errors import LoadError
from mstar.media.audio import Track
from mstar.server.live import Deliver, Live
from mstar.server.refusals import Refusal
from mstar.server.schema import Name, Seed, Strict
from mstar.server.visit import Poured, Visit, event

LONGEST = 4096
"""How many characters a text may have."""

_UNSUPPORTED = (400, "unsupported_format", "response_format")


class VoiceId(Strict):
    """A voice by its id."""

    id: Name


class Manner(Strict):
    """How something is to be said."""

    model: Name
    voice: Name | VoiceId | None = None
    instructions: Annotated[str, Field(max_length=LONGEST)] | None = None
    language: Annotated[str, Field(max_length=64)] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None
    seed: Seed | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    sample_rate: Annotated[int, Field(ge=8000, le=48_000)] | None = None

    def ask(self, text: str) -> Speech:
        """The request as a model's route takes it."""
        return Speech(
            text,
            voice=self.voice.id if isinstance(self.voice, VoiceId) else self.voice or "",
            speed=1.0 if self.speed is None else self.speed,
            instructions=self.instructions or "",
            language=self.language or "",
            seed=secrets.randbits(62) if self.seed is None else self.seed,
        )

    def track(self) -> Track:
        """What makes the bytes that the client wants."""
        try:
            return Track(self.response_format, self.sample_rate or 24_000)
        except (ValueError, LoadError) as error:
            is_wrong = isinstance(error, ValueError)
            status, code, param = (422, "invalid_value", "sample_rate") if is_wrong else _UNSUPPORTED
            what, _, _ = str(error).partition("\n")  # how to repair it is for whoever runs the server
            raise Refusal(status, code, f"{param}: {what}", param=param) from None


class SpeechBody(Manner):
    """The body of a request for speech."""

    input: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    stream_format: Literal["audio", "sse"] | None = None


async def speak(visit: Visit) -> Response:
    """POST /v1/audio/speech."""
    body = await visit.read(SpeechBody)
    served = visit.find(body.model)
    track = body.track()
    live = visit.open(served, body.ask(body.input))
    await live.begun()
    if body.stream_format == "sse":
        response = visit.events(_events(live, track))
    else:
        response = Poured(_file(visit, live, track), track.media_type, {})
    response.headers["X-Sample-Rate"] = str(track.rate)
    return response


async def sounds(live: Live, track: Track) -> AsyncGenerator[bytes | Ending]:
    """The bytes of a request's sound as it is made, then how it ended."""
    async for news in live:
        if not isinstance(news, Deliver):
            if data := track.finish():
                yield data
            result = getattr(news.end, "result", None)
            yield result.it if result is not None and isinstance(result.it, Ending) else Ending()
        elif news.kind == "Audio":
            rate = int(dict(news.clock)["rate"])
            is_long = math.prod(news.value.shape) > rate  # so long that others would have to wait for it
            data = await asyncio.to_thread(track.feed, news.value, rate) if is_long else track.feed(news.value, rate)
            if data:
                yield data


async def _file(visit: Visit, live: Live, track: Track) -> AsyncGenerator[bytes]:
    """One file. If something goes wrong in it, it does not end, and so the client knows."""
    try:
        async for part in sounds(live, track):
            if isinstance(part, bytes):
                yield part
    except Refusal as refusal:
        visit.passage.status = refusal.status
        raise


async def _events(live: Live, track: Track) -> AsyncGenerator[bytes]:
    async for part in sounds(live, track):
        if isinstance(part, bytes):
            yield event({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})
        else:
            yield event({"type": "speech.audio.done", "usage": usage_of(part)})


def usage_of(ending: Ending) -> dict[str, int]:
    """What was read. How many tokens a sound was made of, no model says."""
    read = sum(ending.read.values())
    return {"input_tokens": read, "output_tokens": 0, "total_tokens": read}
