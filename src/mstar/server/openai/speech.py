"""Text-to-speech endpoint (OpenAI `/v1/audio/speech`): audio streamed as it is synthesized.

The response is one audio file with chunked transfer, or SSE events with base64 audio and word timestamps. Encoding is
done in `mstar.media.audio`. `speech_stream` is the WebSocket variant with streamed text input.
"""

from __future__ import annotations

import asyncio
import base64
import math
import secrets
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field
from starlette.responses import Response

from mstar.errors import MissingExtra
from mstar.frontend.response_stream import Deliver, ResponseStream
from mstar.media.audio import AudioStreamEncoder
from mstar.requests import Finish, SpeechRequest, WordTimestamp
from mstar.server.errors import ApiError, missing_extra_error
from mstar.server.http_exchange import HttpExchange, sse_event
from mstar.server.openai.schema import Name, Seed, StrictModel
from mstar.server.state import ServedModel
from mstar.server.stream_response import StreamResponse

MAX_INPUT_CHARS = 4096
"""Maximum characters of `input`, and of `instructions`."""
_LEGACY_VOICES = {"alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse"}
_OPENAI_VOICES = _LEGACY_VOICES | {"cedar", "marin"}
"""OpenAI's preset voices. SDKs send one of them by default, and Pipecat allows no others."""
AUDIO_TOKENS_PER_S = 20
"""Output tokens that one second of audio counts as in `usage`."""


class VoiceId(StrictModel):
    """Voice given as an object instead of a string."""

    id: Name


class SpeechOptions(StrictModel):
    """Parameters shared by the HTTP and WebSocket speech endpoints."""

    model: Name
    voice: Name | VoiceId | None = None
    instructions: Annotated[str, Field(max_length=MAX_INPUT_CHARS)] | None = None
    language: Annotated[str, Field(max_length=64)] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None
    seed: Seed | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    sample_rate: Annotated[int, Field(ge=8000, le=48_000)] | None = None
    timestamp_granularities: tuple[Literal["word"], ...] = ()

    def to_request(self, text: str, served_model: ServedModel) -> SpeechRequest:
        """Build the request for the model's route."""
        return SpeechRequest(
            text,
            voice=resolve_voice(self.voice.id if isinstance(self.voice, VoiceId) else self.voice or "", served_model),
            speed=1.0 if self.speed is None else self.speed,
            instructions=self.instructions or "",
            language=self.language or "",
            seed=secrets.randbits(62) if self.seed is None else self.seed,
        )

    def check_timestamps(self, served_model: ServedModel) -> None:
        """Raise ApiError if word timestamps are requested of a model that has none."""
        if self.timestamp_granularities and "WordTimestamps" not in served_model.output_kinds:
            message = f"timestamp_granularities: {served_model.name} has no word timestamps. fix: leave it out"
            raise ApiError(400, "unsupported_parameter", message, param="timestamp_granularities")

    def audio_encoder(self) -> AudioStreamEncoder:
        """Create an encoder for the requested format. Raises ApiError."""
        try:
            return AudioStreamEncoder(self.response_format, self.sample_rate or 24_000)
        except ValueError as error:
            reason, _, _ = str(error).partition("\n")
            message = f"sample_rate: {reason}. fix: use a sample rate of the {self.response_format} format"
            raise ApiError(400, "invalid_value", message, param="sample_rate") from None
        except MissingExtra as error:
            raise missing_extra_error(str(error), "response_format", "use wav or pcm") from None


class SpeechBody(SpeechOptions):
    """Body of `/v1/audio/speech`."""

    input: Annotated[str, Field(min_length=1, max_length=MAX_INPUT_CHARS)]
    stream_format: Literal["audio", "sse"] | None = None


def resolve_voice(name: str, served_model: ServedModel) -> str:
    """Voice name for the model: an OpenAI preset that is not in the model's `voices()` becomes its default voice."""
    voices = served_model.optional_method("voices")
    return "" if name in _OPENAI_VOICES and voices is not None and name not in voices() else name


async def create_speech(exchange: HttpExchange) -> Response:
    """POST /v1/audio/speech."""
    body = await exchange.read_json(SpeechBody)
    served = exchange.resolve_model(body.model)
    if body.timestamp_granularities and body.stream_format != "sse":
        message = "timestamp_granularities: an audio file has no place for timestamps. fix: set stream_format to sse"
        raise ApiError(400, "invalid_value", message, param="timestamp_granularities")
    body.check_timestamps(served)
    encoder = body.audio_encoder()
    stream = exchange.start_requests(served, body.to_request(body.input, served))
    await stream.wait_first()
    if body.stream_format == "sse":
        response = exchange.event_stream(_stream_events(stream, encoder, body))
    else:
        response = StreamResponse(_stream_file(exchange, stream, encoder), encoder.media_type, {})
    response.headers["X-Sample-Rate"] = str(encoder.rate)
    return response


async def audio_chunks(
    stream: ResponseStream, encoder: AudioStreamEncoder
) -> AsyncGenerator[bytes | list[WordTimestamp] | Finish]:
    """Yield the encoded audio of a request and the times of its words as they are synthesized, then its `Finish`."""
    async for event in stream:
        if not isinstance(event, Deliver):
            if data := encoder.finish():
                yield data
            result = getattr(event.end, "result", None)
            yield result.content if result is not None and isinstance(result.content, Finish) else Finish()
        elif event.kind == "Audio":
            rate = int(dict(event.clock)["rate"])
            if math.prod(event.value.shape) > rate:  # over one second: encoding it would block the event loop
                data = await asyncio.to_thread(encoder.feed, event.value, rate)
            else:
                data = encoder.feed(event.value, rate)
            if data:
                yield data
        elif event.kind == "WordTimestamps" and event.value:
            yield event.value


async def _stream_file(
    exchange: HttpExchange, stream: ResponseStream, encoder: AudioStreamEncoder
) -> AsyncGenerator[bytes]:
    """Yield one audio file. After an error the chunked body has no terminator, so the client sees a broken transfer."""
    try:
        async for part in audio_chunks(stream, encoder):
            if isinstance(part, bytes):
                yield part
    except ApiError as error:
        exchange.context.record_error(error)
        raise


async def _stream_events(
    stream: ResponseStream, encoder: AudioStreamEncoder, options: SpeechOptions
) -> AsyncGenerator[bytes]:
    async for part in audio_chunks(stream, encoder):
        if isinstance(part, bytes):
            yield sse_event({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})
        elif isinstance(part, Finish):
            yield sse_event({"type": "speech.audio.done", "usage": to_usage(part, encoder)})
        elif options.timestamp_granularities:
            yield sse_event({"type": "speech.audio.words", "words": [asdict(word) for word in part]})


def to_usage(finish: Finish, encoder: AudioStreamEncoder) -> dict[str, int]:
    """Token usage: prompt tokens as the model reports them, output tokens by audio duration."""
    input_tokens, output_tokens = sum(finish.prompt_tokens.values()), audio_tokens(encoder.duration_s)
    return {"input_tokens": input_tokens, "output_tokens": output_tokens, "total_tokens": input_tokens + output_tokens}


def audio_tokens(seconds: float) -> int:
    """Output tokens of a duration of audio, at the rate of OpenAI's models rather than the model's own codec."""
    return math.ceil(round(seconds * AUDIO_TOKENS_PER_S, 3))
