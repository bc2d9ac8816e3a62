"""Reruns in CI: a flaky test is recorded with its id and seed, and too many of them fail the run."""

import dataclasses
import json

import pytest

from tools import ci_tier
from tools.ci_tier import TierResult, judge, main, read

FLAKY = """from pathlib import Path
def test_passes(): pass
def test_fails_once():
    mark = Path(__file__).with_name("ran")
    if not mark.exists():
        mark.touch()
        raise AssertionError
"""
ONE = TierResult("2026-01-01T00:00:00Z", "abc", "unit", 7, 4000, (), "passed")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with the real scripts/test and a flaky test."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/test").symlink_to(ci_tier.ROOT / "scripts/test")
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    monkeypatch.setattr(ci_tier, "RECORDS", tmp_path / "reruns.jsonl")
    return tmp_path


def test_a_rerun_that_passes_is_recorded(checkout, monkeypatch):
    cache = checkout / "cache"
    last_failed = cache / "v/cache/lastfailed"
    last_failed.parent.mkdir(parents=True)
    last_failed.write_text('{"test_of_an_earlier_run.py::test_fails": true}')
    monkeypatch.setattr(ci_tier, "LAST_FAILED", last_failed)
    monkeypatch.setattr(ci_tier, "commit", lambda results: "abc")
    words = [str(checkout / "test_flaky.py"), "-n", "0", "-q", "-o", f"cache_dir={cache}", "--rootdir", str(checkout)]
    assert main(["run 1", "unit", *words]) == 0
    [result] = read(ci_tier.RECORDS)
    assert (result.run, result.tier, result.cases, result.status) == ("run 1", "unit", 2, "passed")
    assert [test.rpartition("::")[2] for test in result.reruns] == ["test_fails_once"]
    assert main(["run 1"]) == 1, "one of two cases is more than five in ten thousand"


def test_five_reruns_in_ten_thousand_cases_are_allowed(capsys):
    results = [
        dataclasses.replace(ONE, reruns=("a", "b")),
        dataclasses.replace(ONE, cases=6000, reruns=("c", "d", "e")),
    ]
    assert judge(results) == 0
    assert "  e  (tier unit, seed 7)" in capsys.readouterr().out
    assert judge([*results, dataclasses.replace(ONE, cases=1, reruns=("f",))]) == 1


def test_lines_are_appended(tmp_path):
    path = tmp_path / "reruns.jsonl"
    path.write_text(json.dumps(dataclasses.asdict(ONE)) + "\n")
    assert read(path) == [ONE]
    assert read(tmp_path / "absent") == []
