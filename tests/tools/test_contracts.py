"""Import contracts of pyproject.toml, checked on a skeleton package: each one holds, and each one can break."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTROL_PLANE = ("graph", "walk", "plan", "wire", "conductor", "server")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
LAYERS = [name for contract in CONTRACTS for line in contract.get("layers", ()) for name in re.findall(r"\w+", line)]
"""Every package or module of mstar, from the layers contract."""


def skeleton_path(layer):
    """A layer is a module if it is one in src, and a package otherwise."""
    return f"{layer}.py" if (ROOT / "src" / "mstar" / f"{layer}.py").is_file() else f"{layer}/__init__.py"


SKELETON = {"__init__.py": ""} | {skeleton_path(layer): "" for layer in LAYERS}


@pytest.fixture
def lint(tmp_path):
    """Writes a skeleton of mstar with some files, and returns the exit code and output of lint-imports."""

    def write_and_lint(files):
        package = tmp_path / "src" / "mstar"
        for name, text in (SKELETON | files).items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text(text)
        paths = os.pathsep.join([str(tmp_path / "src"), str(ROOT)])
        code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
        command = [sys.executable, "-c", code, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
        environment = os.environ | {"PYTHONPATH": paths}
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

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
    "the assistant imports other families": {
        "models/assistant/__init__.py": "",
        "models/assistant/model.py": "import mstar.models.a",
        "models/a/__init__.py": "import mstar",
    },
    "a model sees the facade and its own parts": {
        "models/a/__init__.py": "import mstar, mstar.models.a.blocks",
        "models/a/blocks.py": "import torch",
    },
}

BROKEN = {
    "up": ("Imports point down", {"graph/__init__.py": "import mstar.walk"}),
    "sideways": ("Imports point down", {"testing/__init__.py": "import mstar.draw"}),
    "undeclared": ("Imports point down", {"thing/__init__.py": ""}),
    "the engine up": ("Imports point down", {"engine/__init__.py": "import mstar.worker"}),
    "later layer up": ("Imports point down", {"wire/__init__.py": "import mstar.cli"}),
    "later layer sideways": ("Imports point down", {"conductor/__init__.py": "import mstar.worker"}),
    "torch": ("The control plane never imports torch or numpy", {"walk/__init__.py": "import torch"}),
    "numpy": ("The control plane never imports torch or numpy", {"plan/rows.py": "from numpy import array"}),
    "torch in a function": (
        "The control plane never imports torch or numpy",
        {"walk/__init__.py": "def f():\n    import torch"},
    ),
    "the server and a worker": (
        "The server talks to conductors and workers by messages only",
        {"server/__init__.py": "import mstar.worker"},
    ),
    "the front end and a conductor": (
        "The server talks to conductors and workers by messages only",
        {"frontend/__init__.py": "import mstar.conductor"},
    ),
    "third party": (
        "graph and errors need the standard library only",
        {"graph/text.py": "import rich.console"},
    ),
    "test kit": (
        "Only `mstar prove` and `mstar diff` import the test kit",
        {"cli/__init__.py": "import mstar.testing"},
    ),
    "a model": (
        "Only the assistant and RAG import other model families",
        {"cli/__init__.py": "import mstar.models.orpheus", "models/orpheus.py": ""},
    ),
    "another model": (
        "Only the assistant and RAG import other model families",
        {"models/a.py": "", "models/b.py": "import mstar.models.a"},
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


def test_the_whole_control_plane_is_free_of_torch():
    free = {
        module
        for contract in CONTRACTS
        if "torch" in contract.get("forbidden_modules", ())
        for module in contract["source_modules"]
    }
    assert {f"mstar.{name}" for name in CONTROL_PLANE} <= free


def test_only_nn_models_and_doctor_import_torch():
    """Other packages name torch for type checkers only. `mstar doctor --torch` and `mstar gpu-report`
    report on it, `mstar port` and `mstar profile` run networks in the process of the command."""
    source = ROOT / "src" / "mstar"
    importers = {
        path.relative_to(source).parts[0]
        if not path.is_relative_to(source / "cli")
        else path.relative_to(source).parts[1]
        for path in source.rglob("*.py")
        if imports_at_run_time(ast.parse(path.read_text("utf-8")), "torch")
    }
    assert importers == {"nn", "models", "doctor.py", "gpu_report", "port", "capacity"}


def imports_at_run_time(node: ast.AST, package: str) -> bool:
    """Whether code imports a package, outside of `if TYPE_CHECKING:`."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return any(imports_at_run_time(child, package) for child in node.orelse)
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    return package in {name.partition(".")[0] for name in names} or any(
        imports_at_run_time(child, package) for child in ast.iter_child_nodes(node)
    )
