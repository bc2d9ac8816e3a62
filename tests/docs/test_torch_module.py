"""The code of docs/torch-module.md runs as the page says."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

from mstar.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "torch-module.md").read_text("utf-8")
MODEL, GRADIENT, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "letters.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("letters", None)


def test_the_model_is_checked_and_run(folder, capsys):
    assert main(["check", "letters.py"]) == 0
    assert "no problems" in capsys.readouterr().out
    assert main(["run", "letters.py", "Hello", "--max-tokens", "5"]) == 0
    assert len(capsys.readouterr().out.rstrip("\n")) == 5


def test_the_test_of_the_page_passes(folder):
    exec(compile(TEST, "test_letters.py", "exec"), {})


def test_an_op_can_compute_gradients():
    assert ast.parse(GRADIENT)
    with torch.inference_mode():
        scope = {"torch": torch, "x": torch.full((2,), 3.0), "loss": lambda x: (x * x).sum()}
        exec(compile(GRADIENT, "gradient.py", "exec"), scope)
    assert scope["gradient"].tolist() == [6.0, 6.0]
