"""What a realtime session is set to, and what one answer may be set to otherwise. Read here, obeyed elsewhere.

A setting that would have to be ignored is refused: sound is 24 kHz PCM, and turns are heard by how loud it is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from mstar.asks import Tool
from mstar.server.refusals import Refusal
from mstar.server.schema import Name
from mstar.server.visit import validated


class Setting(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(allow_inf_nan=False, extra="ignore", frozen=True)


Tokens = Annotated[int, Field(ge=1, le=1 << 20)] | Literal["inf"]
Texts = Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=1)]
Instructions = Annotated[str, Field(max_length=1 << 20)]


class PcmFormat(Setting):
    """How sound is sent."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class ServerVad(Setting):
    """How it is heard who speaks."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=20, le=10_000)] = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: None = None


class Transcribing(Setting):
    """Who writes down what the client says."""

    model: Name


class Hearing(Setting):
    """How the client is heard."""

    format: PcmFormat = PcmFormat()
    turn_detection: ServerVad | None = ServerVad()
    transcription: Transcribing | None = None
    noise_reduction: None = None


class Speaking(Setting):
    """How the model speaks."""

    format: PcmFormat = PcmFormat()
    voice: Annotated[str, Field(max_length=256)] = ""


class Sounds(Setting):
    """Both ways."""

    input: Hearing = Hearing()
    output: Speaking = Speaking()


class FunctionTool(Setting):
    """A function that the model may want called."""

    type: Literal["function"]
    name: Name
    description: str = ""
    parameters: dict[str, Any] = {}


class Settings(Setting):
    """All that a client can set."""

    type: Literal["realtime"] = "realtime"
    instructions: Instructions = ""
    output_modalities: Texts = ["audio"]
    audio: Sounds = Sounds()
    tools: Annotated[list[FunctionTool], Field(max_length=128)] = []
    tool_choice: Literal["auto", "none"] = "auto"
    max_output_tokens: Tokens = "inf"


class ResponseWish(Setting):
    """How one answer is wanted. Answers outside the conversation are not given."""

    instructions: Instructions | None = None
    output_modalities: Texts | None = None
    max_output_tokens: Tokens | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    conversation: Literal["auto"] = "auto"
    input: None = None


class Session:
    """What one call is set to."""

    def __init__(self, name: str, model: str, settings: Settings | None = None) -> None:
        self.name = name
        self.model = model
        self.settings = settings or Settings()

    @property
    def content(self) -> dict[str, Any]:
        """It as clients see it."""
        return {"id": self.name, "object": "realtime.session", "model": self.model, **self.settings.model_dump()}

    @property
    def turn_detection(self) -> ServerVad | None:
        """How it is heard who speaks, if it is."""
        return self.settings.audio.input.turn_detection

    @property
    def transcriber(self) -> str | None:
        """The model that writes down what the client says."""
        who = self.settings.audio.input.transcription
        return who and who.model


def changed(session: Session, told: Any) -> Session:
    """A session after a client has set some of it. Raises Refusal."""
    if not isinstance(told, dict):
        raise Refusal(400, "invalid_value", "session: an object is needed", param="session")
    merged = _merged(session.settings.model_dump(), cast("dict[str, Any]", told))
    return Session(session.name, session.model, validated(Settings, msgspec.json.encode(merged)))


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    both = {name: _merged(old[name], new[name]) for name in new if _is_map(old.get(name)) and _is_map(new[name])}
    return {**old, **new, **both}


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def tools_of(wishes: list[FunctionTool]) -> tuple[Tool, ...]:
    """Tools as a model takes them."""
    return tuple(Tool(one.name, one.description, one.parameters) for one in wishes)
