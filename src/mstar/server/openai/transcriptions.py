"""Speech-to-text endpoints (OpenAI `/v1/audio/transcriptions` and `/v1/audio/translations`).

Returns the transcript as json, text, srt, vtt or verbose_json, or streams it as SSE events. Audio is decoded in
`mstar.media`; captions are formatted in `captions`. Speaker labels and logprobs are not supported.
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
from mstar.server.openai.captions import to_bare_word, to_srt, to_vtt
from mstar.server.openai.detokenizer import IncrementalDetokenizer
from mstar.server.openai.schema import Name
from mstar.server.state import ServedModel

MAX_FIELDS = 64
"""Maximum fields of the form besides the file."""
MAX_FIELD_BYTES = 64 << 10
"""Maximum bytes of a form field that is not the file."""
_REPEATED_FIELDS = {"timestamp_granularities", "include", "languages", "keywords"}
"""Form fields that can occur more than once, with or without `[]`."""


_FORMATS_WITH_WORDS = ("verbose_json", "srt", "vtt")
"""Response formats that show the time ranges of words."""


class TranscriptionForm(BaseModel):
    """Form fields besides the file. They arrive as text, so numbers are coerced."""

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
        """Build the request for the model's route. Keywords become part of the prompt. Raises ApiError."""
        if len(languages := {self.language, *self.languages} - {""}) > 1:
            message = f"languages: {len(languages)} languages, the limit is 1. fix: send one language or none"
            raise ApiError(400, "unsupported_parameter", message, param="languages")
        prompt = " ".join([self.prompt, ", ".join(self.keywords)]).strip()
        return TranscriptionRequest(audio, "".join(languages), prompt, self.temperature, is_translation, self.has_words)

    @property
    def has_words(self) -> bool:
        """Whether the time ranges of words are requested."""
        return "word" in self.timestamp_granularities

    def check(self) -> None:
        """Reject options that are not supported, or not together. Raises ApiError."""
        if self.include:
            message = "include: logprobs of transcriptions are not supported. fix: omit include"
            raise ApiError(400, "unsupported_parameter", message, param="include")
        if self.has_words and (self.stream or self.response_format not in _FORMATS_WITH_WORDS):
            names = ", ".join(_FORMATS_WITH_WORDS)
            message = f"timestamp_granularities: words need the response_format {names}, without stream. fix: use one"
            raise ApiError(400, "invalid_value", message, param="timestamp_granularities")


async def transcribe(exchange: HttpExchange) -> Response:
    """POST /v1/audio/transcriptions."""
    return await _transcribe(exchange, is_translation=False)


async def translate(exchange: HttpExchange) -> Response:
    """POST /v1/audio/translations."""
    return await _transcribe(exchange, is_translation=True)


async def _transcribe(exchange: HttpExchange, *, is_translation: bool) -> Response:
    form, file = await _read_form(exchange)
    served = exchange.resolve_model(form.model)
    audio = await exchange.media_inputs().decode_audio(file, "file")
    request = form.to_request(audio, is_translation=is_translation)
    transcription = TranscriptionStream(served, exchange.start_requests(served, request), request)
    if form.stream:
        await transcription.stream.wait_first()
        return exchange.event_stream(transcription.events())
    transcript = await transcription.read_all()
    if form.has_words and transcript.words is None:
        message = f"timestamp_granularities: {served.name} returns no times of words. fix: use segment"
        raise ApiError(400, "unsupported_parameter", message, param="timestamp_granularities")
    return _FORMATTERS[form.response_format](transcript, form, is_translation)


async def _read_form(exchange: HttpExchange) -> tuple[TranscriptionForm, bytes]:
    """Parse the multipart form: its fields and the bytes of its file. Raises ApiError."""
    if exchange.media_type != "multipart/form-data":
        message = f"unsupported content type {exchange.media_type!r}. fix: send multipart/form-data"
        raise ApiError(415, "unsupported_media_type", message)
    async with exchange.request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            message = "file: missing. fix: send the audio as a file part of the form"
            raise ApiError(400, "invalid_value", message, param="file")
        data = await file.read()
        fields: dict[str, Any] = {}
        for name, value in form.multi_items():
            if name.removesuffix("[]") in _REPEATED_FIELDS:  # the SDKs append brackets
                fields.setdefault(name.removesuffix("[]"), []).append(value)
            elif isinstance(value, str):
                fields[name] = value
    parsed = parse_body(TranscriptionForm, msgspec.json.encode(fields))
    parsed.check()
    return parsed, data


class TranscriptionStream:
    """Transcript of one request as it arrives."""

    def __init__(self, served_model: ServedModel, stream: ResponseStream, request: TranscriptionRequest) -> None:
        self.stream = stream
        self._audio: AudioInput = request.audio
        self._language = request.language
        self._detokenizer = IncrementalDetokenizer(served_model.model.detokenize)
        self._text = ""
        self._transcript: Transcript | None = None

    async def _text_deltas(self) -> AsyncGenerator[str]:
        async for event in self.stream:
            if not isinstance(event, Deliver):
                text = self._detokenizer.finish()
                result = getattr(event.end, "result", None)
                if result is not None and isinstance(result.content, Transcript):
                    self._transcript = result.content
            else:
                text = self._detokenizer.add(event.value) if event.kind == "Text" else ""
            self._text += text
            if text:
                yield text

    async def read_all(self) -> Transcript:
        """Wait for the complete transcript; one segment if the model returns no timestamps."""
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
        """Yield `transcript.text.delta` events, then `transcript.text.done`."""
        has_deltas = False
        async for text in self._text_deltas():
            has_deltas = True
            yield sse_event({"type": "transcript.text.delta", "delta": text})
        transcript = self._result()
        if transcript.text and not has_deltas:  # clients that concatenate deltas need at least one
            yield sse_event({"type": "transcript.text.delta", "delta": transcript.text})
        yield sse_event({"type": "transcript.text.done", "text": transcript.text, "usage": _usage(transcript)})


# ---------------------------------------------------------------- formats
def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(transcript.seconds, 3)}


def _json(transcript: Transcript, *_: Any) -> Response:
    return json_response({"text": transcript.text, "usage": _usage(transcript)})


def _text(transcript: Transcript, *_: Any) -> Response:
    return PlainTextResponse(transcript.text + "\n")


def _srt(transcript: Transcript, *_: Any) -> Response:
    return PlainTextResponse(to_srt(transcript))


def _vtt(transcript: Transcript, *_: Any) -> Response:
    return PlainTextResponse(to_vtt(transcript))


def _verbose(transcript: Transcript, form: TranscriptionForm, is_translation: bool) -> Response:
    """OpenAI's verbose_json. Segment fields that models here do not report are 0. Words have no punctuation."""
    unknown: dict[str, Any] = {"seek": 0, "tokens": [], "temperature": 0.0, "avg_logprob": 0.0, "no_speech_prob": 0.0}
    segments: list[dict[str, Any]] = [
        {
            "id": number,
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "compression_ratio": len(segment.text.encode()) / len(zlib.compress(segment.text.encode())),
            **unknown,
        }
        for number, segment in enumerate(transcript.segments)
    ]
    content: dict[str, Any] = {"task": "translate" if is_translation else "transcribe", "language": transcript.language}
    content |= {
        "duration": transcript.seconds,
        "text": transcript.text,
        "usage": _usage(transcript),
    }
    if "segment" in (form.timestamp_granularities or ["segment"]):
        content["segments"] = segments
    if form.has_words:
        words = [(to_bare_word(word.text), word) for word in transcript.words or ()]
        content["words"] = [{"word": text, "start": word.start, "end": word.end} for text, word in words if text]
    return json_response(content)


_FORMATTERS: dict[str, Callable[[Transcript, TranscriptionForm, bool], Response]] = {
    "json": _json,
    "text": _text,
    "srt": _srt,
    "vtt": _vtt,
    "verbose_json": _verbose,
}
