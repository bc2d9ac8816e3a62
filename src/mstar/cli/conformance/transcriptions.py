"""Conformance checks of transcriptions and translations. The input is a tone, so the text itself is not checked."""

from __future__ import annotations

from typing import Any

from mstar.cli.conformance import samples
from mstar.cli.conformance.target import Check, ConformanceTarget, require

PATH = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"


def _transcribe(target: ConformanceTarget, **params: Any) -> Any:
    return target.openai.audio.transcriptions.create(model=target.model, file=("x.wav", samples.wav()), **params)


def _json(target: ConformanceTarget) -> str:
    require(isinstance(_transcribe(target).text, str), "the response has no text")
    return ""


def _text(target: ConformanceTarget) -> str:
    text = _transcribe(target, response_format="text")
    require(isinstance(text, str) and text.endswith("\n"), f"the response is {text!r}")
    return ""


def _srt(target: ConformanceTarget) -> str:
    text = _transcribe(target, response_format="srt")
    require(not text.strip() or (text.startswith("1\n") and " --> " in text), f"the response is {text!r}")
    return ""


def _vtt(target: ConformanceTarget) -> str:
    text = _transcribe(target, response_format="vtt")
    require(text.startswith("WEBVTT\n"), f"the response is {text!r}")
    return ""


def _verbose_json(target: ConformanceTarget) -> str:
    response = _transcribe(target, response_format="verbose_json", timestamp_granularities=["segment"])
    require(abs(response.duration - 1) < 0.05, f"the duration is {response.duration} s, expected 1 s")
    require(all(0 <= segment.start <= segment.end for segment in response.segments), "a segment ends before it starts")
    return ""


def _streamed(target: ConformanceTarget) -> str:
    events = list(_transcribe(target, stream=True))
    require(events[-1].type == "transcript.text.done", f"the last event is {events[-1].type}")
    text = "".join(event.delta for event in events[:-1])
    require(text.strip() == events[-1].text.strip(), f"the deltas are {text!r}, the final text {events[-1].text!r}")
    return f"{len(events)} events"


def _translate(target: ConformanceTarget) -> str:
    response = target.openai.audio.translations.create(model=target.model, file=("x.wav", samples.wav()))
    require(isinstance(response.text, str), "the response has no text")
    return ""


CHECKS = (
    Check(PATH, "json", _json),
    Check(PATH, "text", _text),
    Check(PATH, "srt", _srt),
    Check(PATH, "vtt", _vtt),
    Check(PATH, "verbose_json", _verbose_json),
    Check(PATH, "stream", _streamed),
    Check(TRANSLATIONS, "json", _translate),
)
