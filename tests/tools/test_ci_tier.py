"""Reruns in CI: a flaky test is recorded with its id and seed, and too many of them fail the run."""

import dataclasses
import json

import pytest

from tools import ci_tier
from tools.ci_tier import TierResult, find_long_cases, judge, main, read

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
    last_failed = checkout / "caches/unit/v/cache/lastfailed"
    last_failed.parent.mkdir(parents=True)
    last_failed.write_text('{"test_of_an_earlier_run.py::test_fails": true}')
    monkeypatch.setattr(ci_tier, "CACHES", checkout / "caches")
    monkeypatch.setattr(ci_tier, "commit", lambda results: "abc")
    words = [str(checkout / "test_flaky.py"), "-n", "0", "-q", "--rootdir", str(checkout)]
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


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_b" name="test_c[1]" time="250.5"/>
<testcase classname="tests.a.test_b" name="test_d" time="21"/>
<testcase classname="tests.a.test_b" name="test_e" time="3"/>
</testsuite></testsuites>"""


def test_a_case_that_takes_too_long_fails_the_run(capsys):
    long_cases = find_long_cases(REPORT)
    assert long_cases == (("tests/a/test_b.py::test_c[1]", 250.5), ("tests/a/test_b.py::test_d", 21.0))
    assert judge([dataclasses.replace(ONE, seconds=90.0, long_cases=long_cases[1:])]) == 0
    printed = capsys.readouterr().out
    assert "unit          4000 cases    1.5 min" in printed
    assert "  21 s: tests/a/test_b.py::test_d\n" in printed
    assert judge([dataclasses.replace(ONE, long_cases=long_cases)]) == 1
    assert "test_c[1], the limit is 240 s; fix: make it smaller" in capsys.readouterr().out


def test_lines_are_appended(tmp_path):
    path = tmp_path / "reruns.jsonl"
    one = dataclasses.replace(ONE, seconds=3.5, long_cases=(("a", 30.0),))
    path.write_text(json.dumps(dataclasses.asdict(one)) + "\n")
    assert read(path) == [one]
    assert read(tmp_path / "absent") == []
