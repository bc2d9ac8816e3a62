"""Request body schemas (pydantic) of the chat, completions, embeddings and generate endpoints.

Every number is finite and bounded, every list and string limited, and no value is coerced to another type. Unknown
fields are ignored, because OpenAI clients send many. The endpoints check what a combination of fields means.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
MAX_NAME_CHARS = 256
MAX_MESSAGES = 4096
"""Maximum messages of a conversation."""
MAX_TOOL_CALLS = 128
"""Maximum tool calls of one message."""
TokenCount = Annotated[int, Field(ge=1, le=1 << 20)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class StrictModel(BaseModel):
    """Base schema without type coercion: no string for a number, no NaN or infinity."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", frozen=True)


# ---------------------------------------------------------------- chat
class ContentPartParam(StrictModel):
    """One part of a message's content; the field of its `type` holds the content."""

    type: str
    text: str | None = None
    image_url: dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None
    audio_url: dict[str, Any] | None = None
    file: dict[str, Any] | None = None


class Function(StrictModel):
    """Name and JSON arguments of a tool call."""

    name: Name
    arguments: str = ""


class ToolCallParam(StrictModel):
    """Tool call of an earlier assistant message."""

    id: str
    function: Function


class MessageParam(StrictModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPartParam], Field(max_length=4096)] | None = None
    tool_calls: list[ToolCallParam] = Field(default_factory=list[ToolCallParam], max_length=MAX_TOOL_CALLS)
    tool_call_id: str = ""


class FunctionTool(StrictModel):
    """Definition of a function that the model can call; `parameters` is a JSON schema."""

    name: Name
    description: str = ""
    parameters: dict[str, Any] = {}


class ToolParam(StrictModel):
    """A function of the client in `tools`."""

    type: Literal["function"]
    function: FunctionTool


class McpToolFilter(StrictModel):
    """`allowed_tools` as an object."""

    model_config = ConfigDict(extra="forbid")

    tool_names: Annotated[list[Name], Field(max_length=128)]


class McpTool(StrictModel):
    """Tools of an MCP server that the operator has configured. The server calls them, without approval."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["mcp"]
    server_label: Name
    require_approval: Literal["never"]
    allowed_tools: Annotated[list[Name], Field(max_length=128)] | McpToolFilter | None = None


class NamedFunction(StrictModel):
    """Function reference in `tool_choice`."""

    name: Name


class NamedTool(StrictModel):
    """`tool_choice` that forces one tool."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(StrictModel):
    """JSON schema that the output must match (structured output)."""

    name: str = ""
    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(StrictModel):
    """`response_format`: plain text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(StrictModel):
    """`stream_options`: whether the last chunk carries the token usage."""

    include_usage: bool = False


class VoiceName(StrictModel):
    """Voice given as an object instead of a string."""

    id: Name


class AudioParam(StrictModel):
    """`audio`: voice and format of spoken output."""

    voice: Name | VoiceName = ""
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"] = "wav"


class SamplingParams(StrictModel):
    """Sampling parameters that chat completions and completions share."""

    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(default=None, max_length=1024)
    seed: Seed | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    stop: Name | Annotated[list[Name], Field(max_length=16)] | None = None


class ChatBody(SamplingParams):
    """Body of `/v1/chat/completions`."""

    model: Name
    messages: list[MessageParam] = Field(min_length=1, max_length=MAX_MESSAGES)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[ToolParam | McpTool] = Field(default_factory=list[ToolParam | McpTool], max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioParam | None = None
    service_tier: Name | None = None


# ---------------------------------------------------------------- completions
MAX_PROMPTS = 64
"""Maximum prompts of one request."""
Prompt = Annotated[str, Field(min_length=1)]
PromptTokens = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]


class CompletionBody(SamplingParams):
    """Body of `/v1/completions`."""

    model: Name
    prompt: (
        Prompt
        | Annotated[list[Prompt], Field(min_length=1, max_length=MAX_PROMPTS)]
        | PromptTokens
        | Annotated[list[PromptTokens], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1, le=16)] | None = None
    suffix: str | None = None
    service_tier: Name | None = None


# ---------------------------------------------------------------- embeddings
class EmbeddingBody(StrictModel):
    """Body of `/v1/embeddings`."""

    model: Name
    input: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=2048)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=1 << 16)] | None = None


class RerankDocument(StrictModel):
    """A document as an object."""

    text: Annotated[str, Field(min_length=1)]


class RerankBody(StrictModel):
    """Body of `/v1/rerank`."""

    model: Name
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[
        list[Annotated[str, Field(min_length=1)] | RerankDocument], Field(min_length=1, max_length=1000)
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False


# ---------------------------------------------------------------- generate
class GenerateBody(StrictModel):
    """Body of `/v1/generate`; `request` is parsed by the type of the model's route."""

    model: Name
    request: Any = None
