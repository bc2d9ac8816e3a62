"""Connections to MCP servers: both transports, results, and what happens when a server goes away."""

import asyncio
import socket
import subprocess
import sys
import time

import pytest
from mcp.types import CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent, TextResourceContents

from mstar.config import McpServerConfig
from mstar.errors import MissingExtra
from mstar.server.errors import ApiError
from mstar.server.tools import mcp_server
from mstar.server.tools.mcp_server import McpServers, ToolResult, _to_result
from tests.server.tools.records import PROGRAM, Records


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_listening(port):
    start = time.monotonic()
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() - start < 60
            time.sleep(0.05)
        else:
            return


def test_a_server_over_http_is_called_and_found_again_after_a_restart(tmp_path):
    records, port = Records(tmp_path / "lines"), free_port()
    config = McpServerConfig(url=f"http://127.0.0.1:{port}/mcp", allowed_tools=("record",))

    def start():
        process = subprocess.Popen([sys.executable, PROGRAM, tmp_path / "lines", str(port)], stderr=subprocess.DEVNULL)
        wait_listening(port)
        return process

    async def use(process):
        servers = McpServers({"records": config})
        server = servers.find("records", "tools[0]")
        try:
            assert [tool.name for tool in await server.tools()] == ["record"]
            assert await server.call("record", {"text": "a"}, 60) == ToolResult("recorded a")
            process.kill()
            process.wait()
            assert (await server.call("record", {"text": "lost"}, 60)).is_error
            restarted = await asyncio.to_thread(start)
            try:
                assert [tool.name for tool in await server.tools()] == ["record"]
                assert await server.call("record", {"text": "b"}, 60) == ToolResult("recorded b")
            finally:
                restarted.kill()
                restarted.wait()
        finally:
            await servers.close()

    process = start()
    try:
        asyncio.run(use(process))
    finally:
        process.kill()
        process.wait()
    assert records.lines == ["a", "b"]


def test_a_tool_that_is_not_allowed_is_never_called(tmp_path):
    records = Records(tmp_path / "lines")

    async def use():
        servers = records.servers()
        server = servers.find("records", "tools[0]")
        await server.tools()
        result = await server.call("erase", {}, 60)
        with pytest.raises(ApiError, match=r"did you mean `records`"):
            servers.find("record", "tools[0]")
        await servers.close()
        return result

    assert asyncio.run(use()) == ToolResult("the tool erase of the MCP server records is not available", is_error=True)


def test_a_connection_that_times_out_cancels_no_other_request(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_server, "CONNECT_TIMEOUT_S", 0.3)
    silent = McpServerConfig(command=(sys.executable, "-c", "import time; time.sleep(60)"), allowed_tools=("x",))

    async def use():
        servers = McpServers({"silent": silent})
        server = servers.find("silent", "tools[0]")
        first = asyncio.create_task(server.tools())
        await asyncio.sleep(0.15)
        results = await asyncio.gather(first, server.tools(), return_exceptions=True)
        await servers.close()
        return results

    assert [(error.status, error.code) for error in asyncio.run(use())] == [(503, "mcp_unavailable")] * 2


def test_a_failure_of_this_process_is_not_shown_to_the_model(tmp_path):
    config = McpServerConfig(command=(str(tmp_path / "secret"),), allowed_tools=("x",))
    result = asyncio.run(McpServers({"a": config}).find("a", "").call("x", {}, 60))
    assert result == ToolResult("the call of the tool x failed: FileNotFoundError", is_error=True)


def test_a_result_becomes_text(monkeypatch):
    resource = EmbeddedResource(resource=TextResourceContents(uri="file:///a", text="A"))
    link, image = ResourceLink(name="b", uri="file:///b"), ImageContent(data="", mime_type="image/png")
    content = [TextContent(text="x"), resource, link, image]
    assert _to_result(CallToolResult(content=content)) == ToolResult("x\nA\nfile:///b\n[image/png: not text]")
    assert _to_result(CallToolResult(content=[], structured_content={"a": 1})) == ToolResult('{"a": 1}')
    assert _to_result(CallToolResult(content=content[:1], is_error=True)) == ToolResult("x", is_error=True)
    monkeypatch.setattr(mcp_server, "MAX_RESULT_BYTES", 3)
    assert _to_result(CallToolResult(content=[TextContent(text="éé")])).is_error


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"mstar-serve\[mcp\]"):
        McpServers({"records": McpServerConfig(command=("x",), allowed_tools=("y",))})
    McpServers()
