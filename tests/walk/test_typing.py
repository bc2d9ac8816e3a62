"""What a static checker tells an author before anything is run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MISTAKES = Path(__file__).parent / "typed" / "author_mistakes.py"


def test_pyright_underlines_the_planted_mistakes_and_nothing_else():
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(MISTAKES)]
    report = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout)
    error_lines = {
        one["range"]["start"]["line"] + 1 for one in report["generalDiagnostics"] if one["severity"] == "error"
    }
    lines = MISTAKES.read_text("utf-8").splitlines()
    assert sorted(error_lines) == [number for number, line in enumerate(lines, 1) if "  # error: " in line]
