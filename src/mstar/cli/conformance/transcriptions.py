"""Transcriptions and translations, as people ask for them. What is sent is a tone, so words are not looked at."""

from __future__ import annotations

from typing import Any

from mstar.cli.conformance import samples
from mstar.cli.conformance.target import Check, ConformanceTarget, require

PATH, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"


def _transcribe(site: ConformanceTarget, **params: Any) -> Any:
    return site.openai.audio.transcriptions.create(model=site.model, file=("x.wav", samples.wav()), **params)


def _json(site: ConformanceTarget) -> str:
    require(isinstance(_transcribe(site).text, str), "there is no text")
    return ""


def _text(site: ConformanceTarget) -> str:
    text = _transcribe(site, response_format="text")
    require(isinstance(text, str) and text.endswith("\n"), f"it is {text!r}")
    return ""


def _srt(site: ConformanceTarget) -> str:
    text = _transcribe(site, response_format="srt")
    require(not text.strip() or (text.startswith("1\n") and " --> " in text), f"it is {text!r}")
    return ""


def _vtt(site: ConformanceTarget) -> str:
    text = _transcribe(site, response_format="vtt")
    require(text.startswith("WEBVTT\n"), f"it is {text!r}")
    return ""


def _verbose_json(site: ConformanceTarget) -> str:
    told = _transcribe(site, response_format="verbose_json", timestamp_granularities=["segment"])
    require(abs(told.duration - 1) < 0.05, f"a second of sound has {told.duration} s")
    require(all(0 <= one.start <= one.end for one in told.segments), "segments end before they begin")
    return ""


def _streamed(site: ConformanceTarget) -> str:
    events = list(_transcribe(site, stream=True))
    require(events[-1].type == "transcript.text.done", f"the last event is {events[-1].type}")
    said = "".join(event.delta for event in events[:-1])
    require(said.strip() == events[-1].text.strip(), f"{said!r} came, and in the end {events[-1].text!r}")
    return f"{len(events)} events"


def _translate(site: ConformanceTarget) -> str:
    told = site.openai.audio.translations.create(model=site.model, file=("x.wav", samples.wav()))
    require(isinstance(told.text, str), "there is no text")
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
