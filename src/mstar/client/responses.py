"""What a client gets, as plain values: events of streams, and what a request gave as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNKNOWN_SIZE = b"\xff\xff\xff\xff"


# ---------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class Text:
    """More words."""

    text: str


@dataclass(frozen=True, slots=True)
class Audio:
    """More sound: the next bytes of one file."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Emission:
    """What a model emitted, in its own terms: Text, Audio, Image, Video, Action or Latents."""

    kind: str
    index: int
    """Which one of its kind it is."""
    value: Any
    clock: Mapping[str, Any]
    """How fast it is to be played, if it has a speed."""


# ---------------------------------------------------------------- results
@dataclass(frozen=True, slots=True)
class Array:
    """An array where there is no numpy, or of a dtype that numpy does not know."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    """The lowest byte of each number first."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server has."""

    id: str
    capabilities: tuple[str, ...]
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerPhase:
    """How far a server is: starting, ready or draining."""

    name: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called, with its arguments as JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """An answer of a chat."""

    text: str
    audio: bytes
    """The file that its sound makes; empty if it was not asked to speak."""
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    """Why it ended: stop, length or tool_calls."""
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpeechResponse:
    """A text as sound."""

    data: bytes
    sample_rate: int
    """Samples a second."""
    usage: Mapping[str, Any]

    def save(self, path: str | Path) -> None:
        """Write the file. One that was streamed as WAV is told how long it is."""
        data = bytearray(self.data)
        if self.data.startswith(b"RIFF" + _UNKNOWN_SIZE):
            data[4:8] = (len(data) - 8).to_bytes(4, "little")
            at = data.index(b"data") + 4
            data[at : at + 4] = (len(data) - at - 4).to_bytes(4, "little")
        Path(path).write_bytes(data)


@dataclass(frozen=True, slots=True)
class TranscriptionResponse:
    """What was said in a file."""

    text: str
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GenerateResponse:
    """What a model's route gave at its end."""

    result: Any


@dataclass(frozen=True, slots=True)
class ActionResponse:
    """What a robot is to do: a chunk of actions, so many a second."""

    actions: Any
    rate: float | None
    timing: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WorldStep:
    """What one action led to in a world."""

    step: int
    emissions: Mapping[str, Any]
    """By kind."""
