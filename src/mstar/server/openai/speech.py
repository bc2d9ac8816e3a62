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

from mstar.errors import LoadError
from mstar.frontend.response_stream import Deliver, ResponseStream
from mstar.media.audio import AudioStreamEncoder
from mstar.requests import Finish, SpeechRequest
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, StreamResponse, sse_event
from mstar.server.openai.schema import Name, Seed, StrictModel
from mstar.server.state import ServedModel

MAX_INPUT_CHARS = 4096
"""How many characters a text may have."""
_LEGACY_VOICES = {"alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse"}
_OPENAI_VOICES = _LEGACY_VOICES | {"cedar", "marin"}
"""OpenAI's own voices: libraries ask for one of them unless they are told otherwise, and Pipecat for no others."""
AUDIO_TOKENS_PER_S = 20
"""How many tokens a second of sound is counted as."""

_UNSUPPORTED = (400, "unsupported_format", "response_format")


class VoiceId(StrictModel):
    """A voice by its id."""

    id: Name


class SpeechOptions(StrictModel):
    """How something is to be said."""

    model: Name
    voice: Name | VoiceId | None = None
    instructions: Annotated[str, Field(max_length=MAX_INPUT_CHARS)] | None = None
    language: Annotated[str, Field(max_length=64)] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None
    seed: Seed | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    sample_rate: Annotated[int, Field(ge=8000, le=48_000)] | None = None

    def to_request(self, text: str, served_model: ServedModel) -> SpeechRequest:
        """The request as a model's route takes it."""
        return SpeechRequest(
            text,
            voice=resolve_voice(self.voice.id if isinstance(self.voice, VoiceId) else self.voice or "", served_model),
            speed=1.0 if self.speed is None else self.speed,
            instructions=self.instructions or "",
            language=self.language or "",
            seed=secrets.randbits(62) if self.seed is None else self.seed,
        )

    def audio_encoder(self) -> AudioStreamEncoder:
        """What makes the bytes that the client wants."""
        try:
            return AudioStreamEncoder(self.response_format, self.sample_rate or 24_000)
        except (ValueError, LoadError) as error:
            is_wrong = isinstance(error, ValueError)
            status, code, param = (422, "invalid_value", "sample_rate") if is_wrong else _UNSUPPORTED
            what, _, _ = str(error).partition("\n")  # how to repair it is for whoever runs the server
            raise ApiError(status, code, f"{param}: {what}", param=param) from None


class SpeechBody(SpeechOptions):
    """The body of a request for speech."""

    input: Annotated[str, Field(min_length=1, max_length=MAX_INPUT_CHARS)]
    stream_format: Literal["audio", "sse"] | None = None


def resolve_voice(name: str, served_model: ServedModel) -> str:
    """The voice that is meant by a name. One of OpenAI's is any, to a model that says which it has, and has it not."""
    voices = served_model.optional_method("voices")
    return "" if name in _OPENAI_VOICES and voices is not None and name not in voices() else name


async def create_speech(exchange: HttpExchange) -> Response:
    """POST /v1/audio/speech."""
    body = await exchange.read_json(SpeechBody)
    served = exchange.resolve_model(body.model)
    track = body.audio_encoder()
    live = exchange.start_requests(served, body.to_request(body.input, served))
    await live.wait_first()
    if body.stream_format == "sse":
        response = exchange.event_stream(_stream_events(live, track))
    else:
        response = StreamResponse(_stream_file(exchange, live, track), track.media_type, {})
    response.headers["X-Sample-Rate"] = str(track.rate)
    return response


async def audio_chunks(stream: ResponseStream, encoder: AudioStreamEncoder) -> AsyncGenerator[bytes | Finish]:
    """The bytes of a request's sound as it is made, then how it ended."""
    async for news in stream:
        if not isinstance(news, Deliver):
            if data := encoder.finish():
                yield data
            result = getattr(news.end, "result", None)
            yield result.content if result is not None and isinstance(result.content, Finish) else Finish()
        elif news.kind == "Audio":
            rate = int(dict(news.clock)["rate"])
            is_long = math.prod(news.value.shape) > rate  # so long that others would have to wait for it
            data = (
                await asyncio.to_thread(encoder.feed, news.value, rate) if is_long else encoder.feed(news.value, rate)
            )
            if data:
                yield data


async def _stream_file(
    exchange: HttpExchange, stream: ResponseStream, encoder: AudioStreamEncoder
) -> AsyncGenerator[bytes]:
    """One file. If something goes wrong in it, it does not end, and so the client knows."""
    try:
        async for part in audio_chunks(stream, encoder):
            if isinstance(part, bytes):
                yield part
    except ApiError as refusal:
        exchange.context.status = refusal.status
        raise


async def _stream_events(stream: ResponseStream, encoder: AudioStreamEncoder) -> AsyncGenerator[bytes]:
    async for part in audio_chunks(stream, encoder):
        if isinstance(part, bytes):
            yield sse_event({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})
        else:
            yield sse_event({"type": "speech.audio.done", "usage": to_usage(part, encoder)})


def to_usage(finish: Finish, encoder: AudioStreamEncoder) -> dict[str, int]:
    """What was read, in what the model says that it reads, and what was said."""
    read, said = sum(finish.prompt_tokens.values()), audio_tokens(encoder.duration_s)
    return {"input_tokens": read, "output_tokens": said, "total_tokens": read + said}


def audio_tokens(seconds: float) -> int:
    """Sound that was made, in tokens. Of whatever a model makes it, they are as long as those of OpenAI's models."""
    return math.ceil(round(seconds * AUDIO_TOKENS_PER_S, 3))
