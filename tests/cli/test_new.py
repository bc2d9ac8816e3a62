"""`mstar new`: the files of a new model run, pass their tests, and have a valid placement."""

import subprocess
import sys

import pytest

from mstar.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "first_try"]) == 0
    return tmp_path / "first_try"


def test_a_new_model_has_no_problems_and_a_valid_placement(folder, capsys):
    assert {path.name for path in folder.iterdir()} == {
        "first_try.py",
        "test_first_try.py",
        "placement.toml",
        "README.md",
    }
    model = str(folder / "first_try.py")
    assert main(["check", model]) == 0
    assert "FirstTry: 2 components, 2 walks, no problems" in capsys.readouterr().out
    assert main(["plan", model, "--placement", str(folder / "placement.toml")]) == 0
    assert "speaker runs vocoder.synthesize" in capsys.readouterr().out
    for path in folder.iterdir():
        assert "$" not in path.read_text()


def test_a_new_model_answers(folder, capsys):
    capsys.readouterr()
    assert main(["run", str(folder / "first_try.py"), "Hello", "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_the_tests_of_a_new_model_pass(folder):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_new_model_is_proven(folder, capsys):
    assert main(["prove", str(folder / "first_try.py"), "--schedules", "3"]) == 0, capsys.readouterr().out


def test_nothing_is_overwritten(folder, capsys):
    (folder / "first_try.py").write_text("mine")
    assert main(["new", "first_try"]) == 1
    assert "fix: choose another name" in capsys.readouterr().err
    assert (folder / "first_try.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["3x", "my-model", "class", "../up", ""])
def test_a_name_that_is_no_module_is_rejected(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", name]) == 1
    assert "fix: use letters" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
