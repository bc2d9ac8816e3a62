"""Conformance checks of speech: six audio formats, server-sent events, voices, and text over a WebSocket."""

from __future__ import annotations

import functools
import json
from base64 import b64decode
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mstar.cli.conformance.target import CALL_TIMEOUT_S, Check, ConformanceTarget, ReportedError, require

PATH = "/v1/audio/speech"
VOICES = "/v1/audio/voices"
WEBSOCKET_PATH = "/v1/audio/speech/stream"
RATE = 24_000
TEXT = "Hello there."
FORMATS: dict[str, tuple[str, tuple[bytes, ...]]] = {
    "mp3": ("audio/mpeg", (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")),
    "opus": ("audio/ogg", (b"OggS",)),
    "aac": ("audio/aac", (b"\xff\xf1", b"\xff\xf9")),
    "flac": ("audio/flac", (b"fLaC",)),
    "wav": ("audio/wav", (b"RIFF",)),
    "pcm": ("audio/pcm", (b"",)),
}
"""Content type and magic numbers by format name."""

WEBSOCKET_EVENTS = (
    {"type": "input.text", "text": "Hello there. How "},
    {"type": "input.text", "text": "are you?"},
    {"type": "input.done"},
)


def _speak(target: ConformanceTarget, **params: Any) -> Any:
    voices = target.http.get(VOICES, params={"model": target.model}).json().get("voices") or ["alloy"]
    return target.openai.audio.speech.create(model=target.model, voice=voices[0], input=TEXT, **params)


def _format(name: str, target: ConformanceTarget) -> str:
    response = _speak(target, response_format=name)
    data, content_type = response.read(), response.response.headers["content-type"]
    expected, magic_numbers = FORMATS[name]
    require(content_type.startswith(expected), f"the content type is {content_type}")
    require(data and data.startswith(magic_numbers), f"the file starts with {data[:4]!r}")
    return f"{len(data)} bytes"


def _length(target: ConformanceTarget) -> str:
    """PCM has 24 kHz regardless of the model's sample rate, because clients expect it."""
    pcm, wav = (_speak(target, response_format=name, extra_body={"seed": 1}).read() for name in ("pcm", "wav"))
    rate = int.from_bytes(wav[24:28], "little")
    require(rate == RATE, f"the sample rate of the WAV file is {rate} Hz")
    data = wav[wav.index(b"data") + 8 :]
    require(len(pcm) == len(data), f"{len(pcm)} bytes of PCM, but {len(data)} of WAV")
    require(any(pcm), "the audio is silent")
    return f"{len(pcm) / 2 / RATE:.2f} s"


def _events(target: ConformanceTarget) -> str:
    response = _speak(target, response_format="mp3", stream_format="sse")
    content_type = response.response.headers["content-type"]
    require(content_type.startswith("text/event-stream"), f"the content type is {content_type}")
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    require(all(event["type"] == "speech.audio.delta" for event in events[:-1]), "unexpected event types")
    require(events[-1]["type"] == "speech.audio.done", f"the last event is {events[-1]['type']}")
    require(b64decode(events[0]["audio"]), "the first event has no audio")
    return f"{len(events)} events"


def _voices(target: ConformanceTarget) -> str:
    listed = target.http.get(VOICES, params={"model": target.model})
    body = listed.json()
    if listed.status_code != 200:
        raise ReportedError(body["error"]["code"], body["error"]["message"])
    require(all(voice["id"] for voice in body["data"]), "a voice has no id")
    return ", ".join(body["voices"])


def _websocket(target: ConformanceTarget) -> str:
    with connect(
        f"{target.socket_url}{WEBSOCKET_PATH}", additional_headers=target.headers, compression=None
    ) as websocket:
        with suppress(ConnectionClosed):  # the last message has the reason
            for event in (
                {"type": "session.config", "model": target.model, "response_format": "pcm"},
                *WEBSOCKET_EVENTS,
            ):
                websocket.send(json.dumps(event))
        size, kinds = 0, []
        while not kinds or kinds[-1] != "session.done":
            message = websocket.recv(timeout=CALL_TIMEOUT_S)
            if isinstance(message, bytes):
                size += len(message)
                continue
            event = json.loads(message)
            if event["type"] == "error":
                raise ReportedError(event["error"]["code"], event["error"]["message"])
            kinds.append(event["type"])
    require(kinds == ["audio.start", "audio.done"] * 2 + ["session.done"], f"the events are {kinds}")
    require(size > 0, "the response has no audio")
    return f"{size / 2 / RATE:.2f} s in two sentences"


CHECKS = (
    *(Check(PATH, name, functools.partial(_format, name)) for name in FORMATS),
    Check(PATH, "pcm at 24 kHz", _length),
    Check(PATH, "sse", _events),
    Check(VOICES, "voices", _voices),
    Check(WEBSOCKET_PATH, "text over WebSocket", _websocket),
)
