"""`mstar sim`."""

import pytest

from mstar.cli import main
from mstar.wire.link import Link


def test_run_says_how_many(capsys):
    assert main(["sim", "run", "--scenarios", "3", "--seed", "7"]) == 0
    assert capsys.readouterr().out.startswith("3 scenarios, ")


def test_run_in_two_processes(capsys):
    assert main(["sim", "run", "--scenarios", "5", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.startswith("5 scenarios, ")


def test_run_ends_when_the_time_is_over(capsys):
    assert main(["sim", "run", "--scenarios", "100000", "--minutes", "0"]) == 0
    assert capsys.readouterr().out.startswith("100 scenarios, ")


def test_replay_tells_what_happens(capsys):
    assert main(["sim", "replay", "2", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "conductor.0 is up" in out
    assert "Submit(" in out
    assert "trace hash " in out


@pytest.mark.parametrize("command", [["run", "--scenarios", "30"], ["replay", "0"]], ids=["run", "replay"])
def test_what_goes_wrong_is_reported_with_its_seed(command, capsys, monkeypatch):
    monkeypatch.setattr(Link, "tick", lambda link, now: [])
    assert main(["sim", *command]) == 1
    assert capsys.readouterr().err.startswith("seed 0: I5 long after the last fault: ")
