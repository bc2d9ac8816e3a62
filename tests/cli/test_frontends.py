"""`mstar serve --frontends`: settings of the front ends, and settings that allow one only."""

import pytest

from mstar.cli import main
from mstar.cli.serving.frontends import frontend_settings
from mstar.config import HttpLimits, ServerConfig
from mstar.server.inputs.memory_budget import default_budget_bytes


@pytest.mark.parametrize("flags", [["--in-process"], ["--cluster", "auto"]])
def test_settings_without_processes_on_this_host_are_refused(flags, capsys):
    assert main(["serve", "examples/noop.py", "--frontends", "2", *flags]) == 1
    assert f"fix: omit {flags[0]}, or omit --frontends" in capsys.readouterr().err


def test_limits_that_protect_the_machine_are_divided():
    server = ServerConfig(frontends=3)
    limits = frontend_settings(server, HttpLimits(max_connections=100, max_input_memory_bytes=3000), {}).limits
    assert (limits.max_connections, limits.max_input_memory_bytes) == (34, 1000)
    assert frontend_settings(server, HttpLimits(), {}).limits.max_input_memory_bytes == default_budget_bytes() // 3
