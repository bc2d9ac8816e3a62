"""tools/cycles.py: cycles are found wherever an import stands at module level."""

import pytest

from tools.cycles import check


@pytest.fixture
def cycles(tmp_path):
    """Writes modules of a package and returns the cycles as text."""

    def write_and_check(**modules):
        for name, text in {"__init__": "", **modules}.items():
            path = tmp_path / "src" / "mstar" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return [problem.what for problem in check(tmp_path)]

    return write_and_check


def test_a_cycle_of_two_is_found(cycles):
    assert cycles(a="import mstar.b", b="from mstar.a import x") == ["import cycle: mstar.a, mstar.b"]


def test_type_checking_imports_count(cycles):
    lazy = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mstar.a import x"
    assert cycles(a="from mstar import b", b=lazy) == ["import cycle: mstar.a, mstar.b"]


def test_a_long_cycle_is_one_problem(cycles):
    results = cycles(a="import mstar.b", b="import mstar.c", c="import mstar.a", d="import mstar.a")
    assert results == ["import cycle: mstar.a, mstar.b, mstar.c"]


@pytest.mark.parametrize("text", ["import mstar.c", "def f():\n    import mstar.a", "import os"])
def test_other_imports_pass(cycles, text):
    assert cycles(a="import mstar.b", b=text, c="") == []
