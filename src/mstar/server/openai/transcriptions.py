"""Transcriptions and translations: a file of sound in, what is said in it out, whole or as it is known.

Decoding the file is done elsewhere; who speaks, and when each single word is said, is not told.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.responses import PlainTextResponse, Response

from mstar.frontend.response_stream import Deliver, ResponseStream
from mstar.requests import AudioInput, Segment, Transcript, TranscriptionRequest
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response, parse_body, sse_event
from mstar.server.inputs.media_inputs import MediaInputs
from mstar.server.openai.detokenizer import IncrementalDetokenizer
from mstar.server.openai.schema import Name
from mstar.server.state import ServedModel

MAX_FIELDS = 64
"""How many fields a form may have."""
MAX_FIELD_BYTES = 64 << 10
"""How large a field may be that is not the file."""
_REPEATED_FIELDS = {"timestamp_granularities", "include", "languages", "keywords"}
"""Fields that may come more than once."""


class TranscriptionForm(BaseModel):
    """The fields of a request beside its file. All of them come as text."""

    model_config = ConfigDict(allow_inf_nan=False, extra="ignore", frozen=True)

    model: Name
    language: Annotated[str, Field(max_length=64)] = ""
    languages: list[Annotated[str, Field(max_length=64)]] = []
    keywords: list[Annotated[str, Field(max_length=256)]] = []
    prompt: Annotated[str, Field(max_length=16_384)] = ""
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    timestamp_granularities: list[Literal["segment", "word"]] = []
    include: list[Literal["logprobs"]] = []
    stream: bool = False

    def to_request(self, audio: AudioInput, *, is_translation: bool) -> TranscriptionRequest:
        """The request as a model's route takes it. Words that may be said are a prompt to it."""
        if len(languages := {self.language, *self.languages} - {""}) > 1:
            what = f"languages: the model takes one, and {len(languages)} are given"
            raise ApiError(400, "unsupported_parameter", what, param="languages")
        prompt = " ".join([self.prompt, ", ".join(self.keywords)]).strip()
        return TranscriptionRequest(audio, "".join(languages), prompt, self.temperature, is_translation)


async def transcribe(exchange: HttpExchange) -> Response:
    """POST /v1/audio/transcriptions."""
    return await _transcribe(exchange, is_translation=False)


async def translate(exchange: HttpExchange) -> Response:
    """POST /v1/audio/translations."""
    return await _transcribe(exchange, is_translation=True)


async def _transcribe(exchange: HttpExchange, *, is_translation: bool) -> Response:
    form, file = await _read_form(exchange)
    served = exchange.resolve_model(form.model)
    sound = await MediaInputs(exchange.state.fetcher).decode_audio(file, "file")
    ask = form.to_request(sound, is_translation=is_translation)
    hearing = TranscriptionStream(served, exchange.start_requests(served, ask), ask)
    if form.stream:
        await hearing.stream.wait_first()
        return exchange.event_stream(hearing.events())
    return _FORMATTERS[form.response_format](await hearing.read_all(), is_translation)


async def _read_form(exchange: HttpExchange) -> tuple[TranscriptionForm, bytes]:
    """The fields of the form, and the file in it."""
    if exchange.media_type != "multipart/form-data":
        what = f"the content type is {exchange.media_type!r}, and multipart/form-data is needed"
        raise ApiError(415, "unsupported_media_type", what)
    async with exchange.request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise ApiError(422, "invalid_value", "file: it is needed, as a file", param="file")
        data = await file.read()
        fields: dict[str, Any] = {}
        for name, value in form.multi_items():
            if name.removesuffix("[]") in _REPEATED_FIELDS:  # SDKs write brackets
                fields.setdefault(name.removesuffix("[]"), []).append(value)
            elif isinstance(value, str):
                fields[name] = value
    read = parse_body(TranscriptionForm, msgspec.json.encode(fields))
    if "word" in read.timestamp_granularities or read.include:
        param = "include" if read.include else "timestamp_granularities"
        raise ApiError(400, "unsupported_parameter", f"{param}: the model does not give this", param=param)
    return read, data


class TranscriptionStream:
    """One file that is being listened to."""

    def __init__(self, served_model: ServedModel, stream: ResponseStream, request: TranscriptionRequest) -> None:
        self.stream = stream
        self._audio: AudioInput = request.audio
        self._language = request.language
        self._detokenizer = IncrementalDetokenizer(served_model.model.detokenize)
        self._text = ""
        self._transcript: Transcript | None = None

    async def _text_deltas(self) -> AsyncGenerator[str]:
        """What was said, as it is known."""
        async for news in self.stream:
            if not isinstance(news, Deliver):
                text = self._detokenizer.finish()
                result = getattr(news.end, "result", None)
                if result is not None and isinstance(result.content, Transcript):
                    self._transcript = result.content
            else:
                text = self._detokenizer.add(news.value) if news.kind == "Text" else ""
            self._text += text
            if text:
                yield text

    async def read_all(self) -> Transcript:
        """All that was said. Of a model that tells no times, it is one segment."""
        async for _ in self._text_deltas():
            pass
        return self._result()

    def _result(self) -> Transcript:
        if self._transcript is not None:
            return self._transcript
        seconds = len(self._audio.samples) / self._audio.rate
        text = self._text.strip()
        return Transcript(text, (Segment(0.0, seconds, text),), self._language, seconds)

    async def events(self) -> AsyncGenerator[bytes]:
        """What was said as events."""
        has_deltas = False
        async for text in self._text_deltas():
            has_deltas = True
            yield sse_event({"type": "transcript.text.delta", "delta": text})
        told = self._result()
        if told.text and not has_deltas:  # of a model that tells all at its end: clients put deltas together
            yield sse_event({"type": "transcript.text.delta", "delta": told.text})
        yield sse_event({"type": "transcript.text.done", "text": told.text, "usage": _usage(told)})


# ---------------------------------------------------------------- formats
def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(transcript.seconds, 3)}


def _json(transcript: Transcript, _: bool) -> Response:
    return json_response({"text": transcript.text, "usage": _usage(transcript)})


def _text(transcript: Transcript, _: bool) -> Response:
    return PlainTextResponse(transcript.text + "\n")


def _srt(transcript: Transcript, _: bool) -> Response:
    blocks = [
        f"{number}\n{_format_timestamp(one.start, ',')} --> {_format_timestamp(one.end, ',')}\n{one.text.strip()}\n"
        for number, one in enumerate(transcript.segments, 1)
    ]
    return PlainTextResponse("\n".join(blocks))


def _vtt(transcript: Transcript, _: bool) -> Response:
    blocks = [
        f"{_format_timestamp(one.start, '.')} --> {_format_timestamp(one.end, '.')}\n{one.text.strip()}\n"
        for one in transcript.segments
    ]
    return PlainTextResponse("\n".join(["WEBVTT\n", *blocks]))


def _format_timestamp(seconds: float, separator: str) -> str:
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{separator}{thousandths:03}"


def _verbose(transcript: Transcript, is_translation: bool) -> Response:
    """Everything that is known. What a model does not tell of a segment is 0."""
    unknown: dict[str, Any] = {"seek": 0, "tokens": [], "temperature": 0.0, "avg_logprob": 0.0, "no_speech_prob": 0.0}
    segments: list[dict[str, Any]] = [
        {
            "id": number,
            "start": one.start,
            "end": one.end,
            "text": one.text,
            "compression_ratio": len(one.text.encode()) / len(zlib.compress(one.text.encode())),
            **unknown,
        }
        for number, one in enumerate(transcript.segments)
    ]
    content: dict[str, Any] = {"task": "translate" if is_translation else "transcribe", "language": transcript.language}
    content |= {
        "duration": transcript.seconds,
        "text": transcript.text,
        "segments": segments,
        "usage": _usage(transcript),
    }
    return json_response(content)


_FORMATTERS: dict[str, Callable[[Transcript, bool], Response]] = {
    "json": _json,
    "text": _text,
    "srt": _srt,
    "vtt": _vtt,
    "verbose_json": _verbose,
}
