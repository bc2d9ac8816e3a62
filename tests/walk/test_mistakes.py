"""Golden error messages of author mistakes: one message each, at the marked line, with a fix."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from mstar import Model, WalkError

MISTAKES = Path(__file__).parent / "mistakes"
GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in MISTAKES.glob("*.py"))


def author(name):
    """The model of a mistake's file."""
    full = f"mstar_mistake_{name}"
    spec = importlib.util.spec_from_file_location(full, MISTAKES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module  # annotations are looked up there
    spec.loader.exec_module(module)
    (model_class,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Model) and value.__module__ == full
    ]
    return model_class()


def marked_lines(name):
    lines = (MISTAKES / f"{name}.py").read_text("utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if "# mistake" in line]


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_is_reported_once_on_its_own_line(name, golden):
    with pytest.raises(WalkError) as caught:
        author(name).graphs()
    sites = [problem.site.rpartition(":") for problem in caught.value.problems]
    golden(GOLDEN / f"{name}.txt", str(caught.value).replace(str(MISTAKES.relative_to(Path.cwd())) + "/", "") + "\n")
    assert {Path(path).name for path, _, _ in sites} == {f"{name}.py"}
    assert sorted(int(line) for _, _, line in sites) == marked_lines(name)
    assert all(problem.fix for problem in caught.value.problems)


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.iterdir()} <= set(NAMES)
