"""Speech, as people ask for it: in six formats, as events, over a WebSocket."""

from __future__ import annotations

import functools
import json
from base64 import b64decode
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mstar.cli.conformance.target import CALL_TIMEOUT_S, Check, ConformanceTarget, ReportedError, require

PATH, VOICES, WEBSOCKET_PATH = "/v1/audio/speech", "/v1/audio/voices", "/v1/audio/speech/stream"
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
"""By name: the type that is told, and how the file begins."""

WEBSOCKET_EVENTS = (
    {"type": "input.text", "text": "Hello there. How "},
    {"type": "input.text", "text": "are you?"},
    {"type": "input.done"},
)


def _speak(site: ConformanceTarget, **params: Any) -> Any:
    voices = site.http.get(VOICES, params={"model": site.model}).json().get("voices") or ["alloy"]
    return site.openai.audio.speech.create(model=site.model, voice=voices[0], input=TEXT, **params)


def _format(name: str, site: ConformanceTarget) -> str:
    answer = _speak(site, response_format=name)
    data, told = answer.read(), answer.response.headers["content-type"]
    wanted, marks = FORMATS[name]
    require(told.startswith(wanted), f"its type is {told}")
    require(data and data.startswith(marks), f"it begins with {data[:4]!r}")
    return f"{len(data)} bytes"


def _length(site: ConformanceTarget) -> str:
    """PCM is at 24 kHz, whatever the model speaks with: clients expect no other."""
    pcm, wav = (_speak(site, response_format=name, extra_body={"seed": 1}).read() for name in ("pcm", "wav"))
    rate = int.from_bytes(wav[24:28], "little")
    require(rate == RATE, f"the WAV file has {rate} samples a second")
    sound = wav[wav.index(b"data") + 8 :]
    require(len(pcm) == len(sound), f"{len(pcm)} bytes of PCM, and {len(sound)} of WAV")
    require(any(pcm), "it is silent")
    return f"{len(pcm) / 2 / RATE:.2f} s"


def _events(site: ConformanceTarget) -> str:
    answer = _speak(site, response_format="mp3", stream_format="sse")
    told = answer.response.headers["content-type"]
    require(told.startswith("text/event-stream"), f"its type is {told}")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    require(all(event["type"] == "speech.audio.delta" for event in events[:-1]), "there are other events")
    require(events[-1]["type"] == "speech.audio.done", f"the last event is {events[-1]['type']}")
    require(b64decode(events[0]["audio"]), "the first event has no sound")
    return f"{len(events)} events"


def _voices(site: ConformanceTarget) -> str:
    listed = site.http.get(VOICES, params={"model": site.model})
    told = listed.json()
    if listed.status_code != 200:
        raise ReportedError(told["error"]["code"], told["error"]["message"])
    require(all(one["id"] for one in told["data"]), "a voice has no id")
    return ", ".join(told["voices"])


def _websocket(site: ConformanceTarget) -> str:
    with connect(f"{site.socket_url}{WEBSOCKET_PATH}", additional_headers=site.headers, compression=None) as line:
        with suppress(ConnectionClosed):  # why it hung up is what it said last
            for event in ({"type": "session.config", "model": site.model, "response_format": "pcm"}, *WEBSOCKET_EVENTS):
                line.send(json.dumps(event))
        size, kinds = 0, []
        while not kinds or kinds[-1] != "session.done":
            heard = line.recv(timeout=CALL_TIMEOUT_S)
            if isinstance(heard, bytes):
                size += len(heard)
                continue
            told = json.loads(heard)
            if told["type"] == "error":
                raise ReportedError(told["error"]["code"], told["error"]["message"])
            kinds.append(told["type"])
    require(kinds == ["audio.start", "audio.done"] * 2 + ["session.done"], f"the events are {kinds}")
    require(size > 0, "there is no sound")
    return f"{size / 2 / RATE:.2f} s in two sentences"


CHECKS = (
    *(Check(PATH, name, functools.partial(_format, name)) for name in FORMATS),
    Check(PATH, "pcm at 24 kHz", _length),
    Check(PATH, "sse", _events),
    Check(VOICES, "voices", _voices),
    Check(WEBSOCKET_PATH, "text over WebSocket", _websocket),
)
