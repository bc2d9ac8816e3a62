"""Tools of MCP servers that one request can use, and their calls.

A request names servers that the operator has configured. What it can use of a server is in the allow-list of the
configuration, and in that of the request if it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mstar.errors import format_names
from mstar.requests import Tool, ToolCall
from mstar.server.errors import ApiError
from mstar.server.tools.mcp_server import McpServer, McpServers, ToolResult, parse_arguments


@dataclass(frozen=True, slots=True)
class ToolsetRequest:
    """An MCP server that a request names."""

    label: str
    param: str
    """Field of the request, for errors."""
    only: frozenset[str] | None = None
    """Names of the tools to use; None: all that are allowed."""
    disabled: frozenset[str] = frozenset()
    """Names of tools not to use."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """A server with the tools that a request can use of it."""

    server: McpServer
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A call of a server tool that begins, or that has ended."""

    call: ToolCall
    server_label: str
    """Empty if no server of the request has the tool."""
    result: ToolResult | None = None
    """None when the call begins."""


class ServerTools:
    """The toolsets of one request."""

    def __init__(self, toolsets: Sequence[Toolset]) -> None:
        self.toolsets = toolsets
        self._servers = {tool.name: toolset.server for toolset in toolsets for tool in toolset.tools}

    @classmethod
    async def open(cls, servers: McpServers, requests: Sequence[ToolsetRequest]) -> ServerTools:
        """List the tools of the servers that a request names. Raises ApiError."""
        return cls([await _open_toolset(servers, request) for request in requests])

    @property
    def tools(self) -> list[Tool]:
        """All tools."""
        return [tool for toolset in self.toolsets for tool in toolset.tools]

    def label_of(self, name: str) -> str:
        """Label of the server that has a tool; empty if none has it."""
        server = self._servers.get(name)
        return "" if server is None else server.label

    async def call(self, call: ToolCall, remaining_s: float) -> ToolResult:
        """Call a tool once. A call that cannot be made or that fails is a result too."""
        server, arguments = self._servers.get(call.name), parse_arguments(call.arguments)
        if server is None:
            return ToolResult(f"there is no tool {call.name}", is_error=True)
        if arguments is None:
            return ToolResult(f"the arguments of the tool {call.name} are not a JSON object", is_error=True)
        return await server.call(call.name, arguments, remaining_s)


async def _open_toolset(servers: McpServers, request: ToolsetRequest) -> Toolset:
    server = servers.find(request.label, request.param)
    tools = await server.tools()
    names = {tool.name for tool in tools}
    if unknown := sorted(((request.only or frozenset()) | request.disabled) - names):
        message = (
            f"{request.param}: the MCP server `{request.label}` has no allowed tool {unknown[0][:64]!r}; there are: "
            f"{format_names(sorted(names), empty='none')}. fix: use one of them, or have the operator allow it"
        )
        raise ApiError(400, "tool_not_allowed", message, param=request.param)
    used = (names if request.only is None else request.only) - request.disabled
    return Toolset(server, tuple(tool for tool in tools if tool.name in used))


def check_names(tools: Sequence[Tool], param: str) -> None:
    """Raise ApiError if two tools of a request have the same name: a call could not be assigned."""
    seen = set[str]()
    for tool in tools:
        if tool.name in seen:
            message = f"{param}: two tools are named {tool.name[:64]!r}. fix: allow one of them only"
            raise ApiError(400, "invalid_value", message, param=param)
        seen.add(tool.name)
