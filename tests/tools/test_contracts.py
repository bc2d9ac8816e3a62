"""The import contracts of pyproject.toml, tried on a skeleton package: each is kept, and each can break."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTROL_PLANE = ("graph", "walk", "plan", "wire", "conductor", "server")
TODAY = ("cli", "server", "conductor", "draw", "testing", "plan", "wire", "walk", "graph")


@pytest.fixture
def lint(tmp_path):
    """Writes a skeleton of mstar with the given files in it; returns lint-imports' exit code and output."""

    def write_and_lint(files):
        package = tmp_path / "src" / "mstar"
        skeleton = {f"{name}/__init__.py": "" for name in TODAY} | dict.fromkeys(
            ("__init__.py", "errors.py", "failpoints.py", "interpreter.py"), ""
        )
        for name, text in (skeleton | files).items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text(text)
        paths = os.pathsep.join([str(tmp_path / "src"), str(ROOT)])
        code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
        command = [sys.executable, "-c", code, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
        environment = os.environ | {"PYTHONPATH": paths}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return write_and_lint


ALLOWED = {
    "the facade imports what it shows": {"__init__.py": "import mstar.walk, mstar.graph"},
    "imports point down": {"cli/__init__.py": "import mstar, mstar.draw, mstar.plan, mstar.errors"},
    "the test kit uses numpy": {"testing/__init__.py": "import numpy, mstar.plan, mstar.walk"},
    "walk names torch in annotations": {
        "walk/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"
    },
    "graph uses the standard library": {"graph/__init__.py": "import collections.abc, mstar.errors"},
    "the test kit runs the engine": {
        "testing/__init__.py": "import mstar.engine",
        "engine/__init__.py": "import mstar.plan, mstar.walk",
    },
    "a later layer takes its place": {
        "wire/__init__.py": "import mstar.walk",
        "conductor/__init__.py": "import mstar.wire",
    },
    "a model sees the facade and its own parts": {
        "models/__init__.py": "",
        "models/a/__init__.py": "import mstar, mstar.models.a.blocks",
        "models/a/blocks.py": "import torch",
    },
}

BROKEN = {
    "up": ("Imports point down", {"graph/__init__.py": "import mstar.walk"}),
    "sideways": ("Imports point down", {"testing/__init__.py": "import mstar.draw"}),
    "undeclared": ("Imports point down", {"thing/__init__.py": ""}),
    "the engine up": (
        "Imports point down",
        {"engine/__init__.py": "import mstar.worker", "worker/__init__.py": ""},
    ),
    "later layer up": ("Imports point down", {"wire/__init__.py": "import mstar.cli"}),
    "later layer sideways": (
        "Imports point down",
        {"conductor/__init__.py": "import mstar.worker", "worker/__init__.py": ""},
    ),
    "torch": ("The control plane never imports torch or numpy", {"walk/__init__.py": "import torch"}),
    "numpy": ("The control plane never imports torch or numpy", {"plan/rows.py": "from numpy import array"}),
    "torch in a function": (
        "The control plane never imports torch or numpy",
        {"walk/__init__.py": "def f():\n    import torch"},
    ),
    "third party": (
        "graph and errors need the standard library only",
        {"graph/text.py": "import rich.console"},
    ),
    "test kit": ("Nothing imports the test kit", {"cli/__init__.py": "import mstar.testing"}),
    "a model": (
        "No one knows a model by name",
        {"cli/__init__.py": "import mstar.models.orpheus", "models/__init__.py": "", "models/orpheus.py": ""},
    ),
    "another model": (
        "No one knows a model by name",
        {"models/__init__.py": "", "models/a.py": "", "models/b.py": "import mstar.models.a"},
    ),
    "facade": ("The facade is for users", {"plan/__init__.py": "import mstar"}),
}


@pytest.mark.parametrize("files", ALLOWED.values(), ids=ALLOWED)
def test_contracts_are_kept(lint, files):
    code, output = lint(files)
    assert code == 0, output


@pytest.mark.parametrize(("contract", "files"), BROKEN.values(), ids=BROKEN)
def test_contracts_break(lint, contract, files):
    code, output = lint(files)
    assert code == 1, output
    assert f"{contract} BROKEN" in output


def test_the_whole_control_plane_is_kept_free_of_torch():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    free = {module for c in contracts if "torch" in c.get("forbidden_modules", ()) for module in c["source_modules"]}
    assert {f"mstar.{name}" for name in CONTROL_PLANE} <= free
