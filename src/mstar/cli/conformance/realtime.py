"""Realtime: a turn in text, and a turn in speech whose end the server hears by itself."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from mstar.cli.conformance import samples
from mstar.cli.conformance.target import Check, ConformanceTarget, ReportedError, require

PATH = "/v1/realtime"
SILENCE_S = 1.0


def _events_until(call: Any, kind: str) -> list[Any]:
    """All events up to the first of a kind."""
    events: list[Any] = []
    while not events or events[-1].type != kind:
        events.append(call.recv())
        if events[-1].type == "error":
            raise ReportedError(events[-1].error.code or "", events[-1].error.message)
    return events


def _response_events(call: Any) -> list[Any]:
    events = _events_until(call, "response.done")
    response = events[-1].response
    details = response.status_details
    if details and details.error:
        raise ReportedError(details.error.code or "", f"the answer {response.status}: {details.error.code}")
    require(response.status in ("completed", "incomplete"), f"the answer is {response.status}")
    return events


def _join_deltas(events: list[Any], kind: str) -> str:
    return "".join(event.delta for event in events if event.type == kind)


def _text(site: ConformanceTarget) -> str:
    said: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}
    with site.openai.realtime.connect(model=site.model) as call:
        require(call.recv().type == "session.created", "the first event is another than session.created")
        call.session.update(session={"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 16})
        _events_until(call, "session.updated")
        call.conversation.item.create(item=said)
        call.response.create()
        text = _join_deltas(_response_events(call), "response.output_text.delta")
    require(text, "there is no text")
    return text


def _speech(site: ConformanceTarget) -> str:
    pcm = samples.tone() + bytes(int(SILENCE_S * samples.RATE) * 2)
    with site.openai.realtime.connect(model=site.model) as call:
        call.session.update(session={"type": "realtime", "max_output_tokens": 16})
        for at in range(0, len(pcm), 9600):
            call.input_audio_buffer.append(audio=b64encode(pcm[at : at + 9600]).decode())
        events = _response_events(call)
    kinds = [event.type for event in events]
    for kind in ("input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "response.created"):
        require(kind in kinds, f"there is no {kind}")
    deltas = [event.delta for event in events if event.type == "response.output_audio.delta"]
    size = sum(len(b64decode(delta)) for delta in deltas)
    require(size > 0, "there is no sound")
    return f"{size / 2 / samples.RATE:.2f} s of sound"


CHECKS = (Check(PATH, "text turn", _text), Check(PATH, "audio turn", _speech))
