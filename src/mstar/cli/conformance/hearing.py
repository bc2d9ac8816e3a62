"""Transcriptions and translations, as people ask for them. What is sent is a tone, so words are not looked at."""

from __future__ import annotations

from typing import Any

from mstar.cli.conformance import samples
from mstar.cli.conformance.site import Check, Site, hold

PATH, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"


def _hear(site: Site, **wishes: Any) -> Any:
    return site.openai.audio.transcriptions.create(model=site.model, file=("x.wav", samples.wav()), **wishes)


def _json(site: Site) -> str:
    hold(isinstance(_hear(site).text, str), "there is no text")
    return ""


def _text(site: Site) -> str:
    text = _hear(site, response_format="text")
    hold(isinstance(text, str) and text.endswith("\n"), f"it is {text!r}")
    return ""


def _srt(site: Site) -> str:
    text = _hear(site, response_format="srt")
    hold(not text.strip() or (text.startswith("1\n") and " --> " in text), f"it is {text!r}")
    return ""


def _vtt(site: Site) -> str:
    text = _hear(site, response_format="vtt")
    hold(text.startswith("WEBVTT\n"), f"it is {text!r}")
    return ""


def _verbose(site: Site) -> str:
    told = _hear(site, response_format="verbose_json", timestamp_granularities=["segment"])
    hold(abs(told.duration - 1) < 0.05, f"a second of sound has {told.duration} s")
    hold(all(0 <= one.start <= one.end for one in told.segments), "segments end before they begin")
    return ""


def _streamed(site: Site) -> str:
    events = list(_hear(site, stream=True))
    hold(events[-1].type == "transcript.text.done", f"the last event is {events[-1].type}")
    said = "".join(event.delta for event in events[:-1])
    hold(said.strip() == events[-1].text.strip(), f"{said!r} came, and in the end {events[-1].text!r}")
    return f"{len(events)} events"


def _translated(site: Site) -> str:
    told = site.openai.audio.translations.create(model=site.model, file=("x.wav", samples.wav()))
    hold(isinstance(told.text, str), "there is no text")
    return ""


CHECKS = (
    Check(PATH, "json", _json),
    Check(PATH, "text", _text),
    Check(PATH, "srt", _srt),
    Check(PATH, "vtt", _vtt),
    Check(PATH, "verbose_json", _verbose),
    Check(PATH, "stream", _streamed),
    Check(TRANSLATIONS, "json", _translated),
)
