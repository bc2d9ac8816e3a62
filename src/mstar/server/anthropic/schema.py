"""Request body schema (pydantic) of `/v1/messages`: content blocks, tools and sampling parameters.

The rules are those of the chat schema: bounded, strict. Unknown fields are errors here: a field of the Anthropic API
that this server does not support is never ignored. `cache_control` is accepted everywhere, because every prefix is
cached without it, and so is `metadata`, which is not about the response.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from mstar.server.openai.schema import MAX_MESSAGES, Name, StrictModel, TokenCount

MAX_BLOCKS = 4096
"""Maximum content blocks of a message."""


class ForbidModel(StrictModel):
    """Base schema without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class CacheControl(ForbidModel):
    """Where a cached prefix ends."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(ForbidModel):
    """Base schema of a content block."""

    cache_control: CacheControl | None = None


class TextBlock(Block):
    """A text. Citations of earlier responses are accepted and not shown to the model."""

    type: Literal["text"]
    text: str
    citations: list[dict[str, Any]] | None = None


class EncodedImage(ForbidModel):
    """An image in the request."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class ImageUrl(ForbidModel):
    """An image by URL."""

    type: Literal["url"]
    url: str


class ImageBlock(Block):
    """An image."""

    type: Literal["image"]
    source: EncodedImage | ImageUrl


class ToolUseBlock(Block):
    """A call of a tool of the client, in an assistant message."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


ResultContent = str | Annotated[list[TextBlock | ImageBlock], Field(max_length=MAX_BLOCKS)]


class ToolResultBlock(Block):
    """The result of such a call, in a user message."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: ResultContent | None = None
    is_error: bool = False


class McpToolUseBlock(Block):
    """A call of a tool of an MCP server, in an assistant message."""

    type: Literal["mcp_tool_use"]
    id: Name
    name: Name
    server_name: str
    input: dict[str, Any]


class McpToolResultBlock(Block):
    """The result of such a call, in an assistant message."""

    type: Literal["mcp_tool_result"]
    tool_use_id: Name
    content: ResultContent | None = None
    is_error: bool = False


ContentBlock = TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | McpToolUseBlock | McpToolResultBlock


class InputMessage(ForbidModel):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], Field(min_length=1, max_length=MAX_BLOCKS)]


class ClientTool(ForbidModel):
    """A tool of the client; `input_schema` is a JSON schema."""

    type: Literal["custom"] | None = None
    name: Name
    description: str = ""
    input_schema: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolConfig(ForbidModel):
    """Settings of a tool in a toolset."""

    enabled: bool = True


class McpToolset(ForbidModel):
    """Tools of an MCP server that the operator has configured. The server calls them."""

    type: Literal["mcp_toolset"]
    mcp_server_name: Name
    default_config: ToolConfig = ToolConfig()
    configs: Annotated[dict[Name, ToolConfig], Field(max_length=128)] | None = None
    cache_control: CacheControl | None = None


class ToolChoice(ForbidModel):
    """`tool_choice`: whether the model decides, must call any tool, a named one, or none."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool = False


class Thinking(ForbidModel):
    """`thinking`: off. No model here has it."""

    type: Literal["disabled"]


class OutputFormat(ForbidModel):
    """`output_config.format`: a JSON schema that the output must match."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(ForbidModel):
    """`output_config`: the format of the output."""

    format: OutputFormat | None = None


class ClientUser(ForbidModel):
    """`metadata`: an id of the user of the client."""

    user_id: Name | None = None


class MessagesBody(ForbidModel):
    """Body of `/v1/messages`."""

    model: Name
    max_tokens: TokenCount
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS)] | None = None
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    stop_sequences: Annotated[list[Name], Field(max_length=16)] | None = None
    tools: Annotated[list[ClientTool | McpToolset], Field(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None
    metadata: ClientUser | None = None
    cache_control: CacheControl | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
