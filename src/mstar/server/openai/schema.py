"""What clients may send, as schemas: every number finite and bounded, every text of a type that was asked for.

Fields that nobody here reads are ignored: clients send many. What a wish means is decided by the surfaces.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
MAX_NAME_CHARS = 256
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class StrictModel(BaseModel):
    """A schema that takes nothing for something else: no text for a number, no infinity."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", frozen=True)


# ---------------------------------------------------------------- chat
class ContentPartParam(StrictModel):
    """A part of what somebody said."""

    type: str
    text: str | None = None
    image_url: dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None
    audio_url: dict[str, Any] | None = None
    file: dict[str, Any] | None = None


class Function(StrictModel):
    """A function that was called, with its arguments as JSON."""

    name: Name
    arguments: str = ""


class ToolCallParam(StrictModel):
    """A call that the assistant made before."""

    id: str
    function: Function


class MessageParam(StrictModel):
    """What one side said."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPartParam], Field(max_length=4096)] | None = None
    tool_calls: list[ToolCallParam] = Field(default=[], max_length=128)
    tool_call_id: str = ""


class FunctionTool(StrictModel):
    """A function that may be called."""

    name: Name
    description: str = ""
    parameters: dict[str, Any] = {}


class ToolParam(StrictModel):
    """A tool that the client offers."""

    type: Literal["function"]
    function: FunctionTool


class NamedFunction(StrictModel):
    """The name of a function."""

    name: Name


class NamedTool(StrictModel):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(StrictModel):
    """What an answer must look like."""

    name: str = ""
    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(StrictModel):
    """Whether an answer is text or JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(StrictModel):
    """What a stream tells besides the answer."""

    include_usage: bool = False


class VoiceName(StrictModel):
    """A voice by its id."""

    id: Name


class AudioParam(StrictModel):
    """How an answer is to be spoken."""

    voice: Name | VoiceName = ""
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"] = "wav"


class ChatBody(StrictModel):
    """The body of a chat completion."""

    model: Name
    messages: list[MessageParam] = Field(min_length=1, max_length=4096)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(default=None, max_length=1024)
    seed: Seed | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    stop: Name | Annotated[list[Name], Field(max_length=16)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[ToolParam] = Field(default=[], max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioParam | None = None
    service_tier: Name | None = None


# ---------------------------------------------------------------- embeddings
class EmbeddingBody(StrictModel):
    """The body of a request for embeddings."""

    model: Name
    input: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=2048)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=1 << 16)] | None = None


# ---------------------------------------------------------------- generate
class GenerateBody(StrictModel):
    """The body of a request in the model's own terms."""

    model: Name
    request: Any = None
