"""Conformance checks of the Realtime API: a text turn, and an audio turn with server-side voice activity detection."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from mstar.cli.conformance import samples
from mstar.cli.conformance.target import Check, ConformanceTarget, ReportedError, require

PATH = "/v1/realtime"
SILENCE_S = 1.0


def _events_until(connection: Any, kind: str) -> list[Any]:
    """Receive events up to the first of a type. Raises ReportedError."""
    events: list[Any] = []
    while not events or events[-1].type != kind:
        events.append(connection.recv())
        if events[-1].type == "error":
            raise ReportedError(events[-1].error.code or "", events[-1].error.message)
    return events


def _response_events(connection: Any) -> list[Any]:
    events = _events_until(connection, "response.done")
    response = events[-1].response
    details = response.status_details
    if details and details.error:
        raise ReportedError(details.error.code or "", f"response {response.status}: {details.error.code}")
    require(response.status in ("completed", "incomplete"), f"the response is {response.status}")
    return events


def _join_deltas(events: list[Any], kind: str) -> str:
    return "".join(event.delta for event in events if event.type == kind)


def _text(target: ConformanceTarget) -> str:
    item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}
    with target.openai.realtime.connect(model=target.model) as connection:
        require(connection.recv().type == "session.created", "the first event is not session.created")
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 16})
        _events_until(connection, "session.updated")
        connection.conversation.item.create(item=item)
        connection.response.create()
        text = _join_deltas(_response_events(connection), "response.output_text.delta")
    require(text, "the response has no text")
    return text


def _speech(target: ConformanceTarget) -> str:
    pcm = samples.tone() + bytes(int(SILENCE_S * samples.RATE) * 2)
    with target.openai.realtime.connect(model=target.model) as connection:
        connection.session.update(session={"type": "realtime", "max_output_tokens": 16})
        for at in range(0, len(pcm), 9600):
            connection.input_audio_buffer.append(audio=b64encode(pcm[at : at + 9600]).decode())
        events = _response_events(connection)
    kinds = [event.type for event in events]
    for kind in ("input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "response.created"):
        require(kind in kinds, f"event {kind} is missing")
    deltas = [event.delta for event in events if event.type == "response.output_audio.delta"]
    size = sum(len(b64decode(delta)) for delta in deltas)
    require(size > 0, "the response has no audio")
    return f"{size / 2 / samples.RATE:.2f} s of audio"


CHECKS = (Check(PATH, "text turn", _text), Check(PATH, "audio turn", _speech))
