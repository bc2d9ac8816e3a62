"""The MCP server of the tests as a process, its configuration, and what it has recorded."""

import json
import sys
from pathlib import Path

from mstar.config import McpServerConfig
from mstar.server.tools.mcp_server import McpServers

PROGRAM = Path(__file__).with_name("records_server.py")
TOOL = {"type": "mcp", "server_label": "records", "require_approval": "never"}
"""Names the server in OpenAI's APIs."""
TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "records"}
"""Names the server in Anthropic's API."""
ALLOWED_TOOLS = ("record", "wait", "die")


class Records:
    """The file in which each call has left a line."""

    def __init__(self, file):
        self._file = file
        self.command = (sys.executable, str(PROGRAM), str(file))
        self.clear()

    def servers(self, **options):
        """The server as `records`, and one that cannot start."""
        records = McpServerConfig(command=self.command, allowed_tools=ALLOWED_TOOLS, **options)
        broken = McpServerConfig(command=("/nowhere/program",), allowed_tools=("x",))
        return McpServers({"records": records, "broken": broken})

    @property
    def manifest(self):
        """The table of the server in a manifest."""
        return f'[mcp_servers.records]\ncommand = {json.dumps(self.command)}\nallowed_tools = ["record"]\n'

    def clear(self):
        self._file.write_text("")

    @property
    def lines(self):
        return self._file.read_text().splitlines()
