"""`mstar check`, `mstar draw` and `mstar plan`: what they print, what they write, and every way they can fail."""

import colorsys
import json
import runpy
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import mstar
from mstar.cli import main
from mstar.draw import to_mermaid
from mstar.graph.text import render
from mstar.walk.load import load_model

EXAMPLES = Path(__file__).parents[2] / "examples"
GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert (exited.value.code, capsys.readouterr().out) == (0, f"mstar {mstar.__version__}\n")


TINY = """
from mstar import Component, Model, State, op, walk

class Seen(State):
    pass

class Part(Component):
    @op
    def inc(self, x: int) -> int: ...
    @op
    def note(self, x: int, seen: Seen) -> None: ...

class {name}(Model):
    def __init__(self{extra}):
        self.part = Part()

    @walk
    def grow(self, x: int) -> int:
        return self.part.inc(x)
"""
TWO = """
    @walk
    def note(self, x: int, seen: Seen) -> None:
        self.part.note(x, seen)
"""
PLACED = """
[place]
lm = "gpu0"
"lm.prefill" = "gpu1"
snac = ["gpu2", "gpu3"]
"""


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """An empty folder to stand in, so that paths in messages are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys):
    """Runs a command: its status, and what it printed to each side."""

    def command(*arguments):
        status = main([*map(str, arguments)])
        payload = capsys.readouterr()
        return status, payload.out, payload.err

    return command


def tiny(name="Tiny", extra="", more=""):
    return TINY.format(name=name, extra=extra) + more


def example(name):
    return EXAMPLES / f"{name}.py"


# ---------------------------------------------------------------- check
@pytest.mark.parametrize("name", NAMES)
def test_check_says_what_a_model_is(name, run, golden):
    status, out, err = run("check", example(name))
    assert (status, err) == (0, "")
    golden(GOLDEN / f"check.{name}.txt", out)


def test_check_names_what_a_walk_gives(workdir, run):
    (workdir / "tiny.py").write_text(tiny(more=TWO))
    assert run("check", "tiny.py") == (
        0,
        "Tiny: 1 component, 2 walks, no problems\n"
        "  grow(x): 1 call, returns a value\n"
        "  note(x, seen): 1 call, extends states\n",
        "",
    )


def test_check_tells_all_problems_of_all_walks(workdir, run, golden):
    wrong = """
    @walk
    def first(self, x: int) -> int:
        return self.part.ink(x)

    @walk
    def second(self, x: int) -> int:
        return self.prat.inc(x)
    """
    (workdir / "wrong.py").write_text(tiny(more=wrong))
    status, out, err = run("check", "wrong.py")
    assert (status, out) == (1, "")
    assert err.startswith("Tiny: 2 problems\nwrong.py:")
    golden(GOLDEN / "error.problems.txt", err)
    status, out, again = run("check", "wrong.py", "--json")
    assert (status, again) == (1, err)
    report = json.loads(out)
    assert (report["ok"], [problem["file"] for problem in report["problems"]]) == (False, ["wrong.py"] * 2)
    assert report["problems"][0]["line"] == 23
    assert report["problems"][0]["message"] == "walk `first`: component `part` has no op `ink` (did you mean `inc`?)"
    assert report["problems"][1]["fix"] == "use one of `part`"


def test_check_prints_json(workdir, run):
    (workdir / "tiny.py").write_text(tiny(more=TWO))
    status, out, _ = run("check", "tiny.py", "--json")
    walks = {
        "grow": {"inputs": ["x"], "calls": 1, "emits": [], "returns": True},
        "note": {"inputs": ["x", "seen"], "calls": 1, "emits": [], "returns": False},
    }
    assert (status, json.loads(out)) == (0, {"model": "tiny.py", "ok": True, "walks": walks, "problems": []})


def test_a_model_that_cannot_be_loaded_is_a_problem_of_no_line(workdir, run):
    status, out, err = run("check", "none.py", "--json")
    (problem,) = json.loads(out)["problems"]
    assert (status, problem["file"], problem["line"]) == (1, None, None)
    assert err == f"{problem['message']}\n  fix: {problem['fix']}\n"


# ---------------------------------------------------------------- plan
def test_plan_on_one_worker(run, golden):
    status, out, err = run("plan", example("orpheus"))
    assert (status, err) == (0, "")
    golden(GOLDEN / "plan.local.txt", out)


def test_plan_under_a_placement(workdir, run, golden):
    (workdir / "place.toml").write_text(PLACED)
    status, out, err = run("plan", example("orpheus"), "--placement", "place.toml")
    assert (status, err) == (0, "")
    golden(GOLDEN / "plan.placed.txt", out)


def test_plan_of_an_empty_placement_is_local(workdir, run):
    (workdir / "place.toml").write_text("")
    assert run("plan", example("orpheus"), "--placement", "place.toml") == run("plan", example("orpheus"))


# ---------------------------------------------------------------- draw
def test_draw_writes_every_form(workdir, run):
    graph = load_model(str(example("orpheus"))).graphs()["speak"]
    for name in ("x.svg", "x.json", "x.mmd", "x.txt"):
        assert run("draw", example("orpheus"), "-o", name) == (0, f"drew walk speak to {name}\n", "")
    assert ElementTree.parse("x.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert json.loads(Path("x.json").read_text())
    assert Path("x.mmd").read_text() == to_mermaid(graph)
    assert Path("x.txt").read_text() == render(graph)


@pytest.mark.parametrize("name", NAMES)
def test_every_walk_of_every_example_is_drawn(name, workdir, run):
    for walk in load_model(str(example(name))).graphs():
        assert run("draw", example(name), "--walk", walk, "-o", "x.svg")[0] == 0
        root = ElementTree.parse("x.svg").getroot()
        texts = "".join(root.itertext())
        assert walk in texts


def test_a_placement_colours_a_drawing(workdir, run):
    (workdir / "place.toml").write_text(PLACED)
    run("draw", example("orpheus"), "-o", "plain.svg")
    assert run("draw", example("orpheus"), "--placement", "place.toml", "-o", "placed.svg")[0] == 0
    plain, placed = Path("plain.svg").read_text(), Path("placed.svg").read_text()
    assert all(worker in placed and worker not in plain for worker in ("gpu0", "gpu1", "gpu2"))
    ElementTree.fromstring(placed)


@pytest.mark.skipif(shutil.which("rsvg-convert") is None, reason="rsvg-convert is not installed")
@pytest.mark.parametrize(("name", "walk"), [("orpheus", "speak"), ("qwen3_omni", "talk")])
def test_a_drawing_renders(name, walk, workdir, run):
    run("draw", example(name), "--walk", walk, "-o", "x.svg")
    subprocess.run(["rsvg-convert", "x.svg", "-o", "x.png"], check=True, timeout=30)
    data = Path("x.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert 200 <= width <= 6000
    assert 100 <= height <= 6000
    assert len(data) > 5000  # something is on it


# ---------------------------------------------------------------- finding a model
def test_one_of_two_models_is_named(workdir, run):
    (workdir / "pair.py").write_text(tiny("One") + tiny("Other", more=TWO))
    assert run("check", "pair.py:Other")[1].startswith("Other: 1 component, 2 walks")
    assert run("check", "pair.py:One")[1].startswith("One: 1 component, 1 walk")


def test_a_model_may_import_what_lies_beside_it(workdir, run):
    (workdir / "mstar_test_beside.py").write_text(tiny())
    (workdir / "own.py").write_text("from mstar_test_beside import Tiny\nclass Own(Tiny):\n    pass\n")
    before = [*sys.path]
    assert run("check", workdir / "own.py")[1].startswith("Own: 1 component")
    assert sys.path == before


def test_arguments_with_defaults_are_no_obstacle(workdir, run):
    (workdir / "easy.py").write_text(tiny(extra=", size=3, *rest, scale=1.0, **more"))
    assert run("check", "easy.py")[0] == 0


@pytest.fixture
def installed(workdir, monkeypatch):
    """A distribution with three models, of which one is none and one cannot be imported."""
    (workdir / "mstar_test_toys.py").write_text(tiny() + "\nnumber = 3\n")
    (workdir / "mstar_test_sick.py").write_text("import mstar_test_nowhere\n")
    folder = workdir / "mstar_test_toys-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mstar-test-toys\nVersion: 1.0\n")
    lines = ["tiny = mstar_test_toys:Tiny", "number = mstar_test_toys:number", "sick = mstar_test_sick:Sick"]
    (folder / "entry_points.txt").write_text("\n".join(["[mstar.models]", *lines]))
    monkeypatch.syspath_prepend(str(workdir))
    yield
    sys.modules.pop("mstar_test_toys", None)


@pytest.mark.usefixtures("installed")
def test_an_installed_model_is_found_by_name(run):
    assert run("check", "tiny")[:2] == (
        0,
        "Tiny: 1 component, 1 walk, no problems\n  grow(x): 1 call, returns a value\n",
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["tinny", "number", "wholly-other"])
def test_an_installed_name_that_is_no_model(name, run, golden):
    status, out, err = run("check", name)
    assert (status, out) == (1, "")
    golden(GOLDEN / f"error.installed.{name}.txt", err)


@pytest.mark.usefixtures("installed")
def test_an_installed_model_that_cannot_be_imported(run):
    status, _, err = run("check", "sick")
    assert status == 1
    assert "mstar_test_nowhere" in err


# ---------------------------------------------------------------- what goes wrong
FAILURES = {
    "missing": ["check", "nowhere/zebra.py"],
    "misspelt": ["check", "modle.py"],
    "none": ["check", "empty.py"],
    "two": ["check", "pair.py"],
    "unknown-class": ["check", "pair.py:Ohter"],
    "import": ["check", "broken.py"],
    "arguments": ["check", "needy.py"],
    "suffix": ["draw", "model.py", "-o", "x.png"],
    "no-suffix": ["draw", "model.py", "-o", "x"],
    "unwritable": ["draw", "model.py", "-o", "nowhere/x.svg"],
    "walk": ["draw", "model.py", "--walk", "grwo", "-o", "x.svg"],
    "no-walk": ["draw", "several.py", "-o", "x.svg"],
    "no-walks": ["draw", "idle.py", "-o", "x.svg"],
    "plan-missing-placement": ["plan", "model.py", "--placement", "nowhere.toml"],
    "plan-bad-placement": ["plan", "model.py", "--placement", "bad.toml"],
    "plan-unfit-placement": ["plan", "model.py", "--placement", "unfit.toml"],
    "draw-bad-placement": ["draw", "model.py", "--placement", "bad.toml", "-o", "x.svg"],
    "draw-unfit-placement": ["draw", "model.py", "--placement", "unfit.toml", "-o", "x.svg"],
}


def write_mistakes(folder):
    files = {
        "model.py": tiny(),
        "empty.py": "from mstar import Model\n",
        "pair.py": tiny("One") + tiny("Other"),
        "broken.py": "import mstar_test_nowhere\n",
        "needy.py": tiny(extra=", size, scale"),
        "several.py": tiny(more=TWO),
        "idle.py": "from mstar import Model\nclass Idle(Model):\n    pass\n",
        "bad.toml": "place = 3\n[walks.grow]\npart = []\n",
        "unfit.toml": '[place]\nprat = "gpu0"\n',
    }
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize("name", sorted(FAILURES))
def test_a_failure_is_reported_without_a_traceback(name, workdir, run, golden):
    write_mistakes(workdir)
    before = sorted(path.name for path in workdir.iterdir())
    status, out, err = run(*FAILURES[name])
    assert (status, out) == (1, "")
    assert "fix: " in err
    golden(GOLDEN / f"error.{name}.txt", err)
    assert sorted(path.name for path in workdir.iterdir() if path.name != "__pycache__") == before


def test_no_golden_file_is_left_over():
    known = {f"check.{name}" for name in NAMES} | {f"error.{name}" for name in FAILURES}
    known |= {"plan.local", "plan.placed", "error.problems"}
    known |= {f"error.installed.{name}" for name in ("tinny", "number", "wholly-other")}
    assert {path.stem for path in GOLDEN.iterdir()} == known


def test_a_file_that_is_not_python(workdir, run):
    (workdir / "syntax.py").write_text("x = 1\ndef x(:\n")
    status, out, err = run("check", "syntax.py")
    assert (status, out) == (1, "")
    assert err == (
        "syntax.py: import failed: SyntaxError: invalid syntax (syntax.py, line 2)\n  fix: see syntax.py:2\n"
    )


def test_a_failed_import_leaves_nothing_behind(workdir, run):
    (workdir / "mstar_test_broken.py").write_text("1 / 0\n")
    before = [*sys.path]
    status, _, err = run("check", "mstar_test_broken.py")
    assert (status, sys.path) == (1, before)
    assert "ZeroDivisionError: division by zero" in err
    assert not [name for name in sys.modules if "mstar_test_broken" in name]


def test_a_model_file_named_like_a_module_does_not_replace_it(workdir, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "colorsys", colorsys)
    (workdir / "colorsys.py").write_text(tiny())
    assert run("check", "colorsys.py")[0] == 0
    assert sys.modules["colorsys"] is colorsys


def test_a_model_that_cannot_be_made(workdir, run):
    (workdir / "sick.py").write_text(tiny().replace("self.part = Part()", "1 / 0"))
    status, _, err = run("check", "sick.py")
    assert status == 1
    assert "division by zero" in err


@pytest.mark.parametrize("arguments", [[], ["chekc", "x.py"], ["check"], ["draw", "x.py"], ["plan", "x.py", "--fast"]])
def test_a_wrong_command_line_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: mstar" in capsys.readouterr().err


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(f"    {name} " in out for name in ("check", "draw", "plan"))


# ---------------------------------------------------------------- as a process
def test_it_runs_as_a_process(workdir):
    (workdir / "model.py").write_text(tiny())

    def command(*arguments):
        line = [sys.executable, "-m", "mstar.cli", *arguments]
        done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stdout, done.stderr

    good = "Tiny: 1 component, 1 walk, no problems\n  grow(x): 1 call, returns a value\n"
    assert command("check", "model.py") == (0, good, "")
    bad = "mode.py: no such file (did you mean `model.py`?)\n  fix: pass the path of a model's .py file\n"
    assert command("check", "mode.py") == (1, "", bad)


def test_it_runs_as_a_module(workdir, monkeypatch, capsys):
    (workdir / "model.py").write_text(tiny())
    monkeypatch.setattr(sys, "argv", ["mstar", "check", "model.py"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("mstar.cli", run_name="__main__")
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("Tiny: ")


def test_a_command_without_its_libraries_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, "mstar.server.http_server", raising=False)
    assert main(["serve", str(EXAMPLES / "noop.py")]) == 1
    assert "pip install 'mstar-serve[serve]'" in capsys.readouterr().err
