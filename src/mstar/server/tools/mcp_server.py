"""Connections to MCP servers (Model Context Protocol) with the official client: list their tools, and call one.

All requests of a front end share one connection to each server. It opens when a request first needs it, and again after
the server has died. A call is sent once: if its result is lost, the call can have had its effect, so the model gets an
error instead of a second call.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from mstar.config import McpServerConfig
from mstar.errors import MissingExtra, format_names, suggest_name
from mstar.requests import Tool
from mstar.server.errors import ApiError

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

log = logging.getLogger("mstar.server")

CONNECT_TIMEOUT_S = 30.0
"""Maximum seconds to connect to an MCP server, the start of its process included, and to list its tools."""
CLOSE_TIMEOUT_S = 10.0
"""Maximum seconds to wait at a shutdown for an MCP server to exit. The client kills its process before."""
RETRY_AFTER_S = 5.0
"""Retry-After, in seconds, if an MCP server cannot be reached."""
MAX_RESULT_BYTES = 256 << 10
"""Maximum bytes of the result of a call."""
MAX_TOOL_PAGES = 100
"""Maximum pages of a list of tools."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model reads of a call."""

    text: str
    is_error: bool = False


class McpServer:
    """One MCP server, as far as it is allowed by its configuration."""

    def __init__(self, label: str, config: McpServerConfig) -> None:
        self.label = label
        self._config = config
        self._connection: _Connection | None = None
        self._closing = set[asyncio.Task[None]]()
        """Tasks of connections that are being closed."""

    async def tools(self) -> list[Tool]:
        """Its allowed tools, as it lists them now. Raises ApiError if it cannot be reached."""
        if self._connection is not None:
            try:
                return await self._list_tools()
            except Exception:  # noqa: BLE001 - it can have been restarted since the last request
                self._disconnect()
        try:
            return await self._list_tools()
        except Exception as error:
            self._disconnect()
            log.warning("the MCP server %s cannot be reached", self.label, exc_info=error)
            message = (
                f"the MCP server `{self.label}` cannot be reached ({type(error).__name__}); "
                f"fix: retry after {RETRY_AFTER_S:g} s, or omit its tools"
            )
            raise ApiError(503, "mcp_unavailable", message, retry_after=RETRY_AFTER_S) from error

    async def call(self, name: str, arguments: dict[str, Any], remaining_s: float) -> ToolResult:
        """Call a tool once, with the time limit of the server or of the request. A failed call is a result too."""
        timeout_s = min(self._config.call_timeout_s, remaining_s)
        if name not in self._config.allowed_tools:
            return ToolResult(f"the tool {name} of the MCP server {self.label} is not available", is_error=True)
        try:
            async with asyncio.timeout(timeout_s):
                client = await self._connect().client()
                return _to_result(await client.call_tool(name, arguments))
        except TimeoutError:
            return ToolResult(f"the tool {name} did not answer within {timeout_s:g} s", is_error=True)
        except Exception as error:  # noqa: BLE001 - whatever the server or the library reports, the model reads it
            # Without its text, which can have the arguments: client data is not logged.
            log.warning("the tool %s of the MCP server %s failed: %s", name, self.label, type(error).__name__)
            return ToolResult(f"the call of the tool {name} failed: {_reason(error)}", is_error=True)

    async def close(self) -> None:
        """Close the connection, which ends a server that is a process of this front end."""
        self._disconnect()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_TIMEOUT_S)

    async def _list_tools(self) -> list[Tool]:
        tools, cursor = list[Tool](), None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            client = await self._connect().client()
            for _ in range(MAX_TOOL_PAGES):
                page = await client.list_tools(cursor=cursor, cache_mode="bypass")
                tools += [Tool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    break
        return [tool for tool in tools if tool.name in self._config.allowed_tools]

    def _connect(self) -> _Connection:
        if self._connection is None:
            self._connection = _Connection(self.label, self._config)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            task = self._connection.begin_close()
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            self._connection = None


class _Connection:
    """A connection to a server. One task opens and closes it, because anyio requires the same task for both."""

    def __init__(self, label: str, config: McpServerConfig) -> None:
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run(label, config))

    async def client(self) -> Client:
        """The client, once it is connected. Raises what prevented the connection."""
        return await asyncio.shield(self._client)

    def begin_close(self) -> asyncio.Task[None]:
        """Begin to close the connection. Returns the task that does it."""
        self._closing.set()
        if not self._client.done():
            self._task.cancel()
        return self._task

    async def _run(self, label: str, config: McpServerConfig) -> None:
        from mcp import Client, StdioServerParameters

        program, *arguments = config.command or ("",)
        parameters = StdioServerParameters(command=program, args=arguments, cwd=config.directory)
        try:
            async with Client(parameters if config.command else config.url) as client:
                self._client.set_result(client)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - the request that needs the connection reports it
            if self._client.done():
                log.warning("the connection to the MCP server %s was lost: %s", label, type(error).__name__)
            else:
                self._client.set_exception(error)
                self._client.exception()  # a request that no longer waits does not read it
        finally:
            if not self._client.done():  # not cancelled: that would cancel the requests that wait for it
                self._client.set_exception(ConnectionAbortedError("closed before it was open"))
                self._client.exception()


def _reason(error: Exception) -> str:
    """Why a call failed. Only what the server or the protocol reports is shown, nothing of this process."""
    from mcp import MCPError

    return error.message if isinstance(error, MCPError) else type(error).__name__


def _to_result(result: CallToolResult) -> ToolResult:
    """The text of a result. Content without text is named, not sent to the model."""
    texts = list[str]()
    for block in result.content:
        match block.type:
            case "text":
                texts.append(block.text)
            case "resource":
                texts.append(getattr(block.resource, "text", f"[{block.resource.uri}: not text]"))
            case "resource_link":
                texts.append(str(block.uri))
            case "image" | "audio":
                texts.append(f"[{block.mime_type}: not text]")
    if not result.content and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    if (size := len(text.encode(errors="replace"))) > MAX_RESULT_BYTES:
        return ToolResult(f"the result has {size} bytes, the limit is {MAX_RESULT_BYTES}", is_error=True)
    return ToolResult(text, result.is_error)


class McpServers:
    """The configured MCP servers of one front end, by label."""

    def __init__(self, configs: Mapping[str, McpServerConfig] | None = None) -> None:
        """Raises MissingExtra if there are any, and the client is not installed."""
        if configs:
            try:
                import_module("mcp")  # at the start: it takes a second, in which the event loop would be blocked
            except ImportError:
                raise MissingExtra.from_package("[mcp_servers]", "mcp", "mcp") from None
            logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs messages, which have client data
        self._servers = {label: McpServer(label, config) for label, config in (configs or {}).items()}

    def find(self, label: str, param: str) -> McpServer:
        """The server with this label. Raises ApiError, which names the field `param`."""
        server = self._servers.get(label)
        if server is None:
            labels = format_names(self._servers, empty="none")
            message = (
                f"{param}: no MCP server is configured as {label[:64]!r}{suggest_name(label[:64], self._servers)}; "
                f"there are: {labels}. fix: use one of them, or have the operator configure [mcp_servers.{label[:64]}]"
            )
            raise ApiError(400, "mcp_server_not_found", message, param=param)
        return server

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call; None if they are not a JSON object."""
    try:
        arguments = json.loads(text or "{}")
    except (json.JSONDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else None
