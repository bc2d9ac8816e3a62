"""What clients ask for, as plain values: one class per surface of the server.

A model says what it serves by the annotation of its route: `async def route(self, request: Chat | Speech)`. The server
builds the request, the conductor hands it to the route, and neither a network nor HTTP is known here.

Answers are emissions, in order: `Text` for words (token numbers, which `Model.spell` turns into text, or strings),
`Audio` for sound, `Image` for pictures (the last one is final, those before are partial), `Video`, `Action`, `Latents`.
What the route returns says the rest: an `Ending`, a `Transcript`, vectors of an embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mstar.nn.lm.sampling import Sampling


# ---------------------------------------------------------------- what a client brings
@dataclass(frozen=True, slots=True)
class AudioInput:
    """Mono samples as float32 between -1 and 1."""

    samples: Any
    rate: int


@dataclass(frozen=True, slots=True)
class ImageInput:
    """Pixels as uint8, [height, width, 3]."""

    pixels: Any


@dataclass(frozen=True, slots=True)
class VideoInput:
    """Frames as uint8, [frames, height, width, 3]."""

    frames: Any
    fps: float


ContentPart = str | ImageInput | AudioInput | VideoInput


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called, with its arguments as JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said."""

    role: str
    """system, user, assistant or tool."""
    parts: tuple[ContentPart, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """The id of the call that a tool's turn answers."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may want called."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """A JSON schema."""


# ---------------------------------------------------------------- requests
@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Go on with a conversation."""

    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[Tool, ...] = ()
    audio_output: bool = False
    """Answer in speech too."""
    voice: str = ""
    multi_turn: bool = False
    """More will be said: further chats, each with the turns that follow. A route may keep what it knows, and need not.
    A chat without turns only asks it to be quiet."""


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """Say a text."""

    text: str
    voice: str = ""
    speed: float = 1.0
    instructions: str = ""
    language: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """Write down what is said. The result is a Transcript; Text emissions are its words as they are known."""

    audio: AudioInput
    language: str = ""
    prompt: str = ""
    temperature: float = 0.0
    is_translation: bool = False
    """Into English."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts as vectors. The result is one array, a row for each."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """Draw a picture, or change some."""

    prompt: str
    width: int = 0
    height: int = 0
    steps: int = 0
    guidance: float = 0.0
    negative_prompt: str = ""
    seed: int = 0
    partial_images: int = 0
    """How many pictures to show before the last."""
    sources: tuple[ImageInput, ...] = ()
    mask: ImageInput | None = None

    def steps_per_image(self, steps: int) -> list[int]:
        """How many of a model's steps come before each picture that is shown, the last one included."""
        shows = min(self.partial_images + 1, steps)
        return [end - begin for begin, end in pairwise(steps * show // shows for show in range(shows + 1))]


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """Make a video."""

    prompt: str
    seconds: float = 4.0
    width: int = 0
    height: int = 0
    seed: int = 0
    source: ImageInput | None = None
    steps: int = 0
    guidance: float = 0.0
    negative_prompt: str = ""


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """What to do, given what a robot sees."""

    observation: Mapping[str, Any]
    prompt: str = ""
    seed: int = 0
    leftover: Any = None
    """Actions of the chunk before that have not been carried out."""
    delay: int = 0
    horizon: int = 0


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What follows each of some actions. A route emits one of each kind for every action, in order."""

    observation: Mapping[str, Any]
    actions: tuple[Any, ...] = ()
    prompt: str = ""
    seed: int = 0


# ---------------------------------------------------------------- what a route returns
@dataclass(frozen=True, slots=True)
class Finish:
    """How an answer ended, and what reading the question took, in tokens by modality."""

    finish_reason: str = "stop"
    """stop, length or tool_calls; cut, of an answer that its hearer cut short and went on from."""
    prompt_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    tool_calls: tuple[ToolCall, ...] = ()
    completion_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """What the answer took, in tokens by modality, of a model that emits text: tokens that it emits are counted."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Words between two moments, in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said."""

    text: str
    segments: tuple[Segment, ...]
    language: str
    seconds: float
