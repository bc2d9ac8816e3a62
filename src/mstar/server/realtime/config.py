"""Schemas of the realtime `session` and `response` settings (OpenAI `session.update` and `response.create`).

Settings that the server does not implement are an error instead of being ignored: audio is 24 kHz PCM, and turn
detection is `server_vad`. `RealtimeSession` and `RealtimeResponse` apply the settings.
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
    """Base schema of all settings."""

    model_config = ConfigDict(allow_inf_nan=False, extra="ignore", frozen=True)


MaxTokens = Annotated[int, Field(ge=1, le=1 << 20)] | Literal["inf"]
OutputModalities = Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=1)]
Instructions = Annotated[str, Field(max_length=1 << 20)]


class PcmFormat(SettingsModel):
    """Audio format of both directions: 16-bit mono PCM at 24 kHz."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class ServerVad(SettingsModel):
    """Turn detection by a server-side voice activity detector."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=20, le=10_000)] = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: None = None


class TranscriptionConfig(SettingsModel):
    """Transcription of the user's audio by a second model."""

    model: Name


class AudioInputConfig(SettingsModel):
    """Input side of `session.audio`."""

    format: PcmFormat = PcmFormat()
    turn_detection: ServerVad | None = ServerVad()
    transcription: TranscriptionConfig | None = None
    noise_reduction: None = None


class AudioOutputConfig(SettingsModel):
    """Output side of `session.audio`."""

    format: PcmFormat = PcmFormat()
    voice: Annotated[str, Field(max_length=256)] = ""


class AudioConfig(SettingsModel):
    """`session.audio`."""

    input: AudioInputConfig = AudioInputConfig()
    output: AudioOutputConfig = AudioOutputConfig()


class FunctionTool(SettingsModel):
    """Definition of a function that the model can call; `parameters` is a JSON schema."""

    type: Literal["function"]
    name: Name
    description: str = ""
    parameters: dict[str, Any] = {}


class SessionSettings(SettingsModel):
    """Settings that `session.update` can change."""

    type: Literal["realtime"] = "realtime"
    instructions: Instructions = ""
    output_modalities: OutputModalities = ["audio"]
    audio: AudioConfig = AudioConfig()
    tools: Annotated[list[FunctionTool], Field(max_length=128)] = []
    tool_choice: Literal["auto", "none"] = "auto"
    max_output_tokens: MaxTokens = "inf"


class ResponseConfig(SettingsModel):
    """Settings of one `response.create`. Responses outside the conversation are not supported."""

    instructions: Instructions | None = None
    output_modalities: OutputModalities | None = None
    max_output_tokens: MaxTokens | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    conversation: Literal["auto"] = "auto"
    input: None = None


class SessionConfig:
    """Identity and current settings of one session."""

    def __init__(self, session_id: str, model: str, settings: SessionSettings | None = None) -> None:
        self.session_id = session_id
        self.model = model
        self.settings = settings or SessionSettings()

    @property
    def content(self) -> dict[str, Any]:
        """The `session` object of `session.created` and `session.updated`."""
        return {"id": self.session_id, "object": "realtime.session", "model": self.model, **self.settings.model_dump()}

    @property
    def turn_detection(self) -> ServerVad | None:
        """Turn detection settings; None if the client commits the audio itself."""
        return self.settings.audio.input.turn_detection

    @property
    def transcription_model(self) -> str | None:
        """Name of the model that transcribes the user's audio, if any."""
        transcription = self.settings.audio.input.transcription
        return transcription and transcription.model


def apply_update(session: SessionConfig, update: Any) -> SessionConfig:
    """Merge a partial `session.update` into the settings and validate the result. Raises ApiError."""
    if not isinstance(update, dict):
        message = f"session: {type(update).__name__} is not an object. fix: send an object with the settings to change"
        raise ApiError(400, "invalid_value", message, param="session")
    merged = _merge(session.settings.model_dump(), cast("dict[str, Any]", update))
    return SessionConfig(session.session_id, session.model, parse_body(SessionSettings, msgspec.json.encode(merged)))


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    nested = {name: _merge(old[name], new[name]) for name in new if _is_object(old.get(name)) and _is_object(new[name])}
    return {**old, **new, **nested}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def to_tools(definitions: list[FunctionTool]) -> tuple[Tool, ...]:
    """Convert tool definitions for a `ChatRequest`."""
    return tuple(Tool(tool.name, tool.description, tool.parameters) for tool in definitions)
