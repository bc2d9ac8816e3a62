"""What a realtime session is set to, and what one answer may be set to otherwise. Read here, obeyed elsewhere.

A setting that would have to be ignored is refused: sound is 24 kHz PCM, and turns are heard by how loud it is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from mstar.requests import Tool
from mstar.server.errors import ApiError
from mstar.server.http_exchange import parse_body
from mstar.server.openai.schema import Name


class SettingsModel(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(allow_inf_nan=False, extra="ignore", frozen=True)


MaxTokens = Annotated[int, Field(ge=1, le=1 << 20)] | Literal["inf"]
OutputModalities = Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=1)]
Instructions = Annotated[str, Field(max_length=1 << 20)]


class PcmFormat(SettingsModel):
    """How sound is sent."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class ServerVad(SettingsModel):
    """How it is heard who speaks."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=20, le=10_000)] = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: None = None


class TranscriptionConfig(SettingsModel):
    """Who writes down what the client says."""

    model: Name


class AudioInputConfig(SettingsModel):
    """How the client is heard."""

    format: PcmFormat = PcmFormat()
    turn_detection: ServerVad | None = ServerVad()
    transcription: TranscriptionConfig | None = None
    noise_reduction: None = None


class AudioOutputConfig(SettingsModel):
    """How the model speaks."""

    format: PcmFormat = PcmFormat()
    voice: Annotated[str, Field(max_length=256)] = ""


class AudioConfig(SettingsModel):
    """Both ways."""

    input: AudioInputConfig = AudioInputConfig()
    output: AudioOutputConfig = AudioOutputConfig()


class FunctionTool(SettingsModel):
    """A function that the model may want called."""

    type: Literal["function"]
    name: Name
    description: str = ""
    parameters: dict[str, Any] = {}


class SessionSettings(SettingsModel):
    """All that a client can set."""

    type: Literal["realtime"] = "realtime"
    instructions: Instructions = ""
    output_modalities: OutputModalities = ["audio"]
    audio: AudioConfig = AudioConfig()
    tools: Annotated[list[FunctionTool], Field(max_length=128)] = []
    tool_choice: Literal["auto", "none"] = "auto"
    max_output_tokens: MaxTokens = "inf"


class ResponseConfig(SettingsModel):
    """How one answer is wanted. Answers outside the conversation are not given."""

    instructions: Instructions | None = None
    output_modalities: OutputModalities | None = None
    max_output_tokens: MaxTokens | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    conversation: Literal["auto"] = "auto"
    input: None = None


class SessionConfig:
    """What one call is set to."""

    def __init__(self, session_id: str, model: str, settings: SessionSettings | None = None) -> None:
        self.session_id = session_id
        self.model = model
        self.settings = settings or SessionSettings()

    @property
    def content(self) -> dict[str, Any]:
        """It as clients see it."""
        return {"id": self.session_id, "object": "realtime.session", "model": self.model, **self.settings.model_dump()}

    @property
    def turn_detection(self) -> ServerVad | None:
        """How it is heard who speaks, if it is."""
        return self.settings.audio.input.turn_detection

    @property
    def transcription_model(self) -> str | None:
        """The model that writes down what the client says."""
        who = self.settings.audio.input.transcription
        return who and who.model


def apply_update(session: SessionConfig, update: Any) -> SessionConfig:
    """A session after a client has set some of it. Raises Refusal."""
    if not isinstance(update, dict):
        raise ApiError(400, "invalid_value", "session: an object is needed", param="session")
    merged = _merge(session.settings.model_dump(), cast("dict[str, Any]", update))
    return SessionConfig(session.session_id, session.model, parse_body(SessionSettings, msgspec.json.encode(merged)))


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    both = {name: _merge(old[name], new[name]) for name in new if _is_mapping(old.get(name)) and _is_mapping(new[name])}
    return {**old, **new, **both}


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def to_tools(definitions: list[FunctionTool]) -> tuple[Tool, ...]:
    """Tools as a model takes them."""
    return tuple(Tool(one.name, one.description, one.parameters) for one in definitions)
