"""Schemas of the realtime `session` and `response` settings (OpenAI `session.update` and `response.create`).

Settings that the server does not implement are an error instead of being ignored.
`RealtimeSession` and `RealtimeResponse` apply the settings.
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
    """16-bit mono PCM at 24 kHz."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class G711Format(SettingsModel):
    """G.711, µ-law or A-law: 8-bit mono audio at 8 kHz."""

    type: Literal["audio/pcmu", "audio/pcma"]


AudioFormat = Annotated[PcmFormat | G711Format, Field(discriminator="type")]


class ServerVad(SettingsModel):
    """Turn detection by a server-side voice activity detector."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=20, le=10_000)] = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: None = None


class SemanticVad(SettingsModel):
    """Turn detection by a model, which tells pauses from ends of turns (see `semantic_turns`)."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True

    @property
    def prefix_padding_ms(self) -> int:
        """Milliseconds kept before speech; not a setting of `semantic_vad`."""
        return ServerVad().prefix_padding_ms


TurnDetection = Annotated[ServerVad | SemanticVad, Field(discriminator="type")]


class TranscriptionConfig(SettingsModel):
    """Transcription of the user's audio by a second model."""

    model: Name
    language: Annotated[str, Field(max_length=64)] = ""
    prompt: Annotated[str, Field(max_length=16_384)] = ""


class AudioInputConfig(SettingsModel):
    """Input side of `session.audio`."""

    format: AudioFormat = PcmFormat()
    turn_detection: TurnDetection | None = ServerVad()
    transcription: TranscriptionConfig | None = None
    noise_reduction: None = None


class AudioOutputConfig(SettingsModel):
    """Output side of `session.audio`."""

    format: AudioFormat = PcmFormat()
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


class TranscriptionAudioConfig(SettingsModel):
    """`session.audio` of a transcription session."""

    input: AudioInputConfig = AudioInputConfig()


class TranscriptionSettings(SettingsModel):
    """Settings of a session that only transcribes."""

    type: Literal["transcription"] = "transcription"
    audio: TranscriptionAudioConfig = TranscriptionAudioConfig()
    include: Annotated[list[str], Field(max_length=0)] = []


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

    def __init__(self, session_id: str, model: str, settings: SessionSettings | TranscriptionSettings) -> None:
        self.session_id = session_id
        self.model = model
        self._settings = settings

    @property
    def content(self) -> dict[str, Any]:
        """The `session` object of `session.created` and `session.updated`."""
        if self.is_transcription:
            return {"id": self.session_id, "object": "realtime.transcription_session", **self.fields}
        return {"id": self.session_id, "object": "realtime.session", "model": self.model, **self.fields}

    @property
    def fields(self) -> dict[str, Any]:
        """All settings, by name."""
        return self._settings.model_dump()

    @property
    def is_transcription(self) -> bool:
        """Whether the session only transcribes, and has no responses."""
        return isinstance(self._settings, TranscriptionSettings)

    @property
    def settings(self) -> SessionSettings:
        """Settings of responses. Raises ApiError in a transcription session."""
        if isinstance(self._settings, TranscriptionSettings):
            message = "a transcription session has no responses. fix: open a session of the type realtime"
            raise ApiError(400, "invalid_session_type", message)
        return self._settings

    @property
    def turn_detection(self) -> ServerVad | SemanticVad | None:
        """Turn detection settings; None if the client commits the audio itself."""
        return self._settings.audio.input.turn_detection

    @property
    def input_format(self) -> PcmFormat | G711Format:
        """Format of the user's audio."""
        return self._settings.audio.input.format

    @property
    def formats(self) -> list[PcmFormat | G711Format]:
        """Audio formats of all directions."""
        outputs = [] if self.is_transcription else [self.settings.audio.output.format]
        return [self.input_format, *outputs]

    @property
    def transcription(self) -> TranscriptionConfig | None:
        """Transcription of the user's audio, if any."""
        return self._settings.audio.input.transcription

    def updated(self, update: dict[str, Any]) -> SessionConfig:
        """The settings after a partial update, which can make it a transcription session. Raises ApiError."""
        old, kind = self._settings.model_dump(), type(self._settings)
        if update.get("type") == "transcription" and kind is SessionSettings:
            old, kind = {"audio": {"input": old["audio"]["input"]}}, TranscriptionSettings
        settings = parse_body(kind, msgspec.json.encode(_merge(old, update)))
        return SessionConfig(self.session_id, self.model, settings)


def apply_update(session: SessionConfig, update: Any) -> SessionConfig:
    """Merge a partial `session.update` into the settings and validate the result. Raises ApiError."""
    if not isinstance(update, dict):
        message = f"session: {type(update).__name__} is not an object. fix: send an object with the settings to change"
        raise ApiError(400, "invalid_value", message, param="session")
    return session.updated(cast("dict[str, Any]", update))


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    nested = {name: _merge(old[name], new[name]) for name in new if _is_object(old.get(name)) and _is_object(new[name])}
    return {**old, **new, **nested}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def to_tools(definitions: list[FunctionTool]) -> tuple[Tool, ...]:
    """Convert tool definitions for a `ChatRequest`."""
    return tuple(Tool(tool.name, tool.description, tool.parameters) for tool in definitions)
