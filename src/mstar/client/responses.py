"""Response types of the client: events of streams, and complete results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNKNOWN_SIZE = b"\xff\xff\xff\xff"


# ---------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Audio:
    """A piece of audio: the next bytes of one file."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Emission:
    """An emission of a model: Text, Audio, WordTimestamps, Image, Video, Action or Latents."""

    kind: str
    index: int
    """Index among the emissions of its kind."""
    value: Any
    clock: Mapping[str, Any]
    """Playback rate, for example {"rate": 24000}. Empty if it has none."""


# ---------------------------------------------------------------- results
@dataclass(frozen=True, slots=True)
class Array:
    """An array without numpy installed, or with a dtype that numpy lacks."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    """Little-endian."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that the server serves."""

    id: str
    capabilities: tuple[str, ...]
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """A conversation that the server has imported."""

    id: str
    """New id: `previous_response_id` of the next response, or `session_id` of a realtime connection."""
    kind: str
    """response or realtime."""
    model: str


@dataclass(frozen=True, slots=True)
class ServerPhase:
    """Phase of the server (starting, ready or draining), with start-up progress."""

    name: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call requested by the model, with its arguments as JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """A complete chat completion."""

    text: str
    audio: bytes
    """Audio file; empty without audio output."""
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    """stop, length or tool_calls."""
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpeechResponse:
    """Generated speech."""

    data: bytes
    sample_rate: int
    """Samples per second."""
    usage: Mapping[str, Any]

    def save(self, path: str | Path) -> None:
        """Write the file. Fills in the sizes that the header of a streamed WAV file lacks."""
        data = bytearray(self.data)
        if self.data.startswith(b"RIFF" + _UNKNOWN_SIZE):
            data[4:8] = (len(data) - 8).to_bytes(4, "little")
            at = data.index(b"data") + 4
            data[at : at + 4] = (len(data) - at - 4).to_bytes(4, "little")
        Path(path).write_bytes(data)


@dataclass(frozen=True, slots=True)
class TranscriptionResponse:
    """A complete transcription."""

    text: str
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GenerateResponse:
    """Return value of a model's route."""

    result: Any


@dataclass(frozen=True, slots=True)
class ActionResponse:
    """A chunk of robot actions."""

    actions: Any
    rate: float | None
    """Actions per second."""
    timing: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WorldStep:
    """Result of one action in a world."""

    step: int
    emissions: Mapping[str, Any]
    """By kind."""
