"""An MCP server for tests: records_server.py FILE [PORT]. Each call of `record` appends a line to the file.

It speaks stdio, or streamable HTTP if there is a port.
"""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("records")
file = Path(sys.argv[1])


@server.tool()
def record(text: str) -> str:
    """Append a line to the file."""
    with file.open("a") as lines:
        lines.write(f"{text}\n")
    return f"recorded {text}"


@server.tool()
async def wait(text: str, seconds: float) -> str:
    """Append a line to the file, and answer later."""
    record(text)
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def die(text: str) -> str:
    """Append a line to the file, and exit without an answer."""
    record(text)
    os._exit(1)


@server.tool()
def erase() -> str:
    """Erase the file. Tests do not allow this tool."""
    file.write_text("")
    return "erased"


if sys.argv[2:]:
    server.run("streamable-http", port=int(sys.argv[2]))
else:
    server.run()
