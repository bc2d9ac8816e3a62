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

from mstar.asks import Segment, Sound, Transcript, Transcription
from mstar.server.door import Served
from mstar.server.files import Files
from mstar.server.live import Deliver, Live
from mstar.server.refusals import Refusal
from mstar.server.schema import Name
from mstar.server.spelling import Spelling
from mstar.server.visit import Visit, answered, event, validated

FIELDS = 64
"""How many fields a form may have."""
FIELD_BYTES = 64 << 10
"""How large a field may be that is not the file."""
_LISTS = {"timestamp_granularities", "include", "languages", "keywords"}
"""Fields that may come more than once."""


class Form(BaseModel):
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

    def ask(self, sound: Sound, *, translates: bool) -> Transcription:
        """The request as a model's route takes it. Words that may be said are a prompt to it."""
        if len(languages := {self.language, *self.languages} - {""}) > 1:
            what = f"languages: the model takes one, and {len(languages)} are given"
            raise Refusal(400, "unsupported_parameter", what, param="languages")
        prompt = " ".join([self.prompt, ", ".join(self.keywords)]).strip()
        return Transcription(sound, "".join(languages), prompt, self.temperature, translates)


async def transcribe(visit: Visit) -> Response:
    """POST /v1/audio/transcriptions."""
    return await _heard(visit, translates=False)


async def translate(visit: Visit) -> Response:
    """POST /v1/audio/translations."""
    return await _heard(visit, translates=True)


async def _heard(visit: Visit, *, translates: bool) -> Response:
    form, file = await _read(visit)
    served = visit.find(form.model)
    sound = await Files(visit.door.fetcher).sound(file, "file")
    ask = form.ask(sound, translates=translates)
    hearing = Hearing(served, visit.open(served, ask), ask)
    if form.stream:
        await hearing.live.begun()
        return visit.events(hearing.events())
    return _WRITERS[form.response_format](await hearing.whole(), translates)


async def _read(visit: Visit) -> tuple[Form, bytes]:
    """The fields of the form, and the file in it."""
    if visit.media_type != "multipart/form-data":
        what = f"the content type is {visit.media_type!r}, and multipart/form-data is needed"
        raise Refusal(415, "unsupported_media_type", what)
    async with visit.request.form(max_files=1, max_fields=FIELDS, max_part_size=FIELD_BYTES) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise Refusal(422, "invalid_value", "file: it is needed, as a file", param="file")
        data = await file.read()
        fields: dict[str, Any] = {}
        for name, value in form.multi_items():
            if name.removesuffix("[]") in _LISTS:  # SDKs write brackets
                fields.setdefault(name.removesuffix("[]"), []).append(value)
            elif isinstance(value, str):
                fields[name] = value
    read = validated(Form, msgspec.json.encode(fields))
    if "word" in read.timestamp_granularities or read.include:
        param = "include" if read.include else "timestamp_granularities"
        raise Refusal(400, "unsupported_parameter", f"{param}: the model does not give this", param=param)
    return read, data


class Hearing:
    """One file that is being listened to."""

    def __init__(self, served: Served, live: Live, ask: Transcription) -> None:
        self.live = live
        self._sound: Sound = ask.sound
        self._language = ask.language
        self._spelling = Spelling(served.model.spell)
        self._text = ""
        self._transcript: Transcript | None = None

    async def _texts(self) -> AsyncGenerator[str]:
        """What was said, as it is known."""
        async for news in self.live:
            if not isinstance(news, Deliver):
                text = self._spelling.finish()
                result = getattr(news.end, "result", None)
                if result is not None and isinstance(result.it, Transcript):
                    self._transcript = result.it
            else:
                text = self._spelling.add(news.value) if news.kind == "Text" else ""
            self._text += text
            if text:
                yield text

    async def whole(self) -> Transcript:
        """All that was said. Of a model that tells no times, it is one segment."""
        async for _ in self._texts():
            pass
        return self._told()

    def _told(self) -> Transcript:
        if self._transcript is not None:
            return self._transcript
        seconds = len(self._sound.samples) / self._sound.rate
        text = self._text.strip()
        return Transcript(text, (Segment(0.0, seconds, text),), self._language, seconds)

    async def events(self) -> AsyncGenerator[bytes]:
        """What was said as events."""
        has_deltas = False
        async for text in self._texts():
            has_deltas = True
            yield event({"type": "transcript.text.delta", "delta": text})
        told = self._told()
        if told.text and not has_deltas:  # of a model that tells all at its end: clients put deltas together
            yield event({"type": "transcript.text.delta", "delta": told.text})
        yield event({"type": "transcript.text.done", "text": told.text, "usage": _usage(told)})


# ---------------------------------------------------------------- formats
def _usage(told: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(told.seconds, 3)}


def _json(told: Transcript, _: bool) -> Response:
    return answered({"text": told.text, "usage": _usage(told)})


def _text(told: Transcript, _: bool) -> Response:
    return PlainTextResponse(told.text + "\n")


def _srt(told: Transcript, _: bool) -> Response:
    blocks = [
        f"{number}\n{_clock(one.start, ',')} --> {_clock(one.end, ',')}\n{one.text.strip()}\n"
        for number, one in enumerate(told.segments, 1)
    ]
    return PlainTextResponse("\n".join(blocks))


def _vtt(told: Transcript, _: bool) -> Response:
    blocks = [f"{_clock(one.start, '.')} --> {_clock(one.end, '.')}\n{one.text.strip()}\n" for one in told.segments]
    return PlainTextResponse("\n".join(["WEBVTT\n", *blocks]))


def _clock(seconds: float, point: str) -> str:
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{thousandths:03}"


def _verbose(told: Transcript, translates: bool) -> Response:
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
        for number, one in enumerate(told.segments)
    ]
    content: dict[str, Any] = {"task": "translate" if translates else "transcribe", "language": told.language}
    content |= {"duration": told.seconds, "text": told.text, "segments": segments, "usage": _usage(told)}
    return answered(content)


_WRITERS: dict[str, Callable[[Transcript, bool], Response]] = {
    "json": _json,
    "text": _text,
    "srt": _srt,
    "vtt": _vtt,
    "verbose_json": _verbose,
}
