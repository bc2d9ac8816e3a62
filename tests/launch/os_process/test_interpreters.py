"""Workers with a Python interpreter of their own."""

import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from mstar.errors import PlacementError
from mstar.launch.local_launcher import LocalLauncher
from mstar.launch.os_process.interpreters import check_interpreter, worker_interpreters
from mstar.plan.placement import parse_placement
from tests.launch.launcher_harness import Probe, StubLauncher, wait_until

VERSION = version("mstar-serve")
MARK = "MSTAR_TEST_OWN_INTERPRETER"


def fake_interpreter(path, output):
    """A program in place of an interpreter, that prints this."""
    path.write_text(f"#!/bin/sh\n{output}\n")
    path.chmod(0o755)
    return str(path)


def test_a_placement_names_interpreters():
    table = {"place": {"lm": "a", "eye": "b"}, "workers": {"a": {"python": "/opt/python"}, "b": {"cpus": 2}}}
    assert worker_interpreters([parse_placement(table)]) == {"a": "/opt/python"}


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("echo 0.0.1", f"has mstar 0.0.1, and this is {VERSION}"),
        ("echo 'ModuleNotFoundError: no mstar' >&2; exit 1", "cannot import mstar: ModuleNotFoundError: no mstar"),
        ("exit 3", "cannot import mstar: exit status 3"),
    ],
)
def test_an_interpreter_without_this_mstar_is_refused(tmp_path, output, problem):
    path = fake_interpreter(tmp_path / "python", output)
    with pytest.raises(PlacementError) as error:
        check_interpreter("llm", path)
    assert f"[workers.llm]: python = '{path}' {problem}" in str(error.value)
    assert f"fix: {path} -m pip install mstar-serve=={VERSION}" in str(error.value)


def test_an_interpreter_that_does_not_exist_is_refused_before_anything_starts():
    placement = '[place]\nlm = "a"\n[workers.a]\npython = "/no/such/python"'
    with pytest.raises(PlacementError, match="/no/such/python' cannot be run"):
        LocalLauncher({"m": "tests/launch/stub_process.py"}, {"m": placement})


def test_an_interpreter_with_this_mstar_is_accepted():
    check_interpreter("llm", sys.executable)


def test_a_worker_runs_in_its_interpreter_also_after_a_crash(tmp_path):
    """The standby has the interpreter of the launcher, so it does not replace the worker."""
    own = fake_interpreter(tmp_path / "python", f'exec env {MARK}=1 {sys.executable} "$@"')
    placement = f'[place]\nlm = "a"\neye = "b"\n[workers.a]\npython = "{own}"'
    with StubLauncher({"m": "m.py"}, {"m": placement}) as local:
        local.add_frontend(Probe())
        assert runs_in_own(local.pid("a"))
        assert not runs_in_own(local.pid("b"))
        wait_until(lambda: "standby" in local.stats()["processes"])
        before = local.pid("a")
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: local.stats()["processes"].get("a", before) != before and local.health()["a"] == "up")
        assert runs_in_own(local.pid("a"))


def runs_in_own(pid):
    """Whether a process was started by the interpreter that sets the mark."""
    return f"{MARK}=1".encode() in Path(f"/proc/{pid}/environ").read_bytes()
