"""The README and the page on placement show what the commands print and what the example says, today."""

import subprocess
import sys
from pathlib import Path

import pytest

from mstar.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PLACEMENT_PAGE = (ROOT / "docs" / "placement.md").read_text("utf-8")
PLACEMENT_ARGS = ["--placement", str(ROOT / "examples" / "placements" / "orpheus.toml")]
MODEL = str(ROOT / "examples" / "orpheus.py")
STDLIB_ONLY = """
import sys
assert not any("site-packages" in path for path in sys.path)
from mstar.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A program that runs `mstar` with the standard library and mstar itself, and no installed package."""


def test_the_speech_model_is_the_example():
    source = Path(MODEL).read_text("utf-8")
    walk = source[source.index("class Orpheus(Model):") : source.index("    async def route")].rstrip()
    assert f"```python\n{walk}\n```" in README
    assert sum(bool(line) for line in walk.splitlines()) <= 17


def test_the_plan_is_what_is_printed(capsys):
    assert main(["plan", MODEL, *PLACEMENT_ARGS]) == 0
    assert f"```text\n{capsys.readouterr().out}```" in PLACEMENT_PAGE


def test_the_picture_is_what_is_drawn(tmp_path):
    assert main(["draw", MODEL, *PLACEMENT_ARGS, "-o", str(tmp_path / "x.svg")]) == 0
    assert (tmp_path / "x.svg").read_text("utf-8") == (ROOT / "docs" / "pictures" / "orpheus.svg").read_text("utf-8")


@pytest.mark.parametrize(
    "arguments",
    [["check", MODEL], ["plan", MODEL, *PLACEMENT_ARGS], ["draw", MODEL, *PLACEMENT_ARGS, "-o", "orpheus.svg"]],
    ids=lambda arguments: arguments[0],
)
def test_the_example_is_checked_planned_and_drawn_with_the_standard_library_only(arguments, tmp_path):
    source = {"PYTHONPATH": str(ROOT / "src"), "PATH": ""}
    command = [sys.executable, "-S", "-c", STDLIB_ONLY, *arguments]
    outcome = subprocess.run(command, env=source, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
