"""Request body schema (pydantic) of `/v1/responses`: input items, tools, text format and storage.

The rules are those of the chat schema: bounded, strict, and unknown fields are ignored. Which items and tools are
supported is checked by the endpoint, with an error that names them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag

from mstar.server.openai.schema import MAX_MESSAGES, McpTool, Name, Seed, StrictModel, TokenCount

Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class ItemPart(StrictModel):
    """One part of the content of a message, or of the output of a function."""

    type: str
    text: str | None = None
    image_url: str | None = None
    file_data: str | None = None
    filename: str | None = None
    input_audio: dict[str, Any] | None = None


ItemContent = str | Annotated[list[ItemPart], Field(max_length=4096)]


class InputItem(StrictModel):
    """One item of `input`: a message, a call of the model, the output of a function, or the tools of an MCP server."""

    type: str = "message"
    id: Name | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: ItemContent | None = None
    call_id: Name | None = None
    name: Name | None = None
    arguments: str | None = None
    output: ItemContent | None = None
    server_label: str | None = None
    error: dict[str, Any] | str | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=1024)] | None = None


class ResponseTool(StrictModel):
    """One entry of `tools` that is no MCP tool. The server supports functions."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def _tool_kind(tool: Any) -> str:
    kind = cast("dict[str, Any]", tool).get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "McpTool" if kind == "mcp" else "ResponseTool"


AnyTool = Annotated[
    Annotated[McpTool, Tag("McpTool")] | Annotated[ResponseTool, Tag("ResponseTool")], Discriminator(_tool_kind)
]
"""An entry of `tools`. Names in capital letters are left out of the paths in errors."""


class ResponseToolChoice(StrictModel):
    """`tool_choice` that forces one function, or one tool of an MCP server."""

    type: Literal["function", "mcp"]
    server_label: Name | None = None
    name: Name


class TextFormat(StrictModel):
    """`text.format`: plain text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(StrictModel):
    """`text`: the format of the output."""

    format: TextFormat | None = None


class ResponsesBody(StrictModel):
    """Body of `/v1/responses`."""

    model: Name
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Seed | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Annotated[list[Name], Field(max_length=32)] | None = None
    tools: Annotated[list[AnyTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Any = None
    text: TextConfig | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Name | None = None
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None
    service_tier: Name | None = None
    truncation: Name | None = None
    conversation: Any = None
    prompt: Any = None
