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
from mstar.server.door import Served
from mstar.server.live import Deliver, Live
from mstar.server.refusals import Refusal
from mstar.server.schema import Name, Seed, Strict
from mstar.server.visit import Poured, Visit, event

LONGEST = 4096
"""How many characters a text may have."""
_EARLIER = {"alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse"}
_PRESETS = _EARLIER | {"cedar", "marin"}
"""OpenAI's own voices: libraries ask for one of them unless they are told otherwise, and Pipecat for no others."""
AUDIO_TOKENS = 20
"""How many tokens a second of sound is counted as."""

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

    def ask(self, text: str, served: Served) -> Speech:
        """The request as a model's route takes it."""
        return Speech(
            text,
            voice=voice_of(self.voice.id if isinstance(self.voice, VoiceId) else self.voice or "", served),
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


def voice_of(name: str, served: Served) -> str:
    """The voice that is meant by a name. One of OpenAI's is any, to a model that says which it has, and has it not."""
    voices = served.own("voices")
    return "" if name in _PRESETS and voices is not None and name not in voices() else name


async def speak(visit: Visit) -> Response:
    """POST /v1/audio/speech."""
    body = await visit.read(SpeechBody)
    served = visit.find(body.model)
    track = body.track()
    live = visit.open(served, body.ask(body.input, served))
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
            yield event({"type": "speech.audio.done", "usage": usage_of(part, track)})


def usage_of(ending: Ending, track: Track) -> dict[str, int]:
    """What was read, in what the model says that it reads, and what was said."""
    read, said = sum(ending.read.values()), audio_tokens(track.seconds)
    return {"input_tokens": read, "output_tokens": said, "total_tokens": read + said}


def audio_tokens(seconds: float) -> int:
    """Sound that was made, in tokens. Of whatever a model makes it, they are as long as those of OpenAI's models."""
    return math.ceil(round(seconds * AUDIO_TOKENS, 3))
