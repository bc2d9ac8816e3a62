"""Branch coverage by package: how it is counted, and which packages are below their floor."""

import json
from dataclasses import asdict

import pytest

from tools import branch_coverage
from tools.branch_coverage import ROOT, Coverage, below_floor, by_package, last_record, main

ONE = Coverage("2026-01-01 00:00:00", "abc", 10, 0, {"graph": 94.9, "media": 75.0, "nn": 80.0, "wire": 79.9})


def summary(statements, branches, covered_lines, covered_branches):
    return {
        "summary": {
            "num_statements": statements,
            "num_branches": branches,
            "covered_lines": covered_lines,
            "covered_branches": covered_branches,
        }
    }


def test_lines_and_branches_are_counted_by_package():
    files = {
        "src/mstar/nn/kv/page_pool.py": summary(60, 20, 50, 10),
        "src/mstar/nn/sampler.py": summary(20, 0, 20, 0),
        "src/mstar/errors.py": summary(8, 2, 8, 2),
        "src/mstar/wire/__init__.py": summary(0, 0, 0, 0),
    }
    assert by_package(files) == {"mstar": 100.0, "nn": 80.0}


def test_packages_below_their_floor_are_found():
    assert below_floor(ONE.packages) == ["graph", "wire"]


@pytest.fixture
def records(tmp_path, monkeypatch):
    monkeypatch.setattr(branch_coverage, "RECORDS", path := tmp_path / "coverage.jsonl")
    return path


def test_the_last_record_is_judged(records, capsys):
    good = Coverage("2026-01-02 00:00:00", "def", 11, 0, {"graph": 95.0})
    records.write_text("".join(json.dumps(asdict(one)) + "\n" for one in (ONE, good)))
    assert main([]) == 0
    assert "branch coverage of def" in capsys.readouterr().out
    records.write_text(json.dumps(asdict(ONE)) + "\n")
    assert main([]) == 1
    assert "below the floor: graph, wire" in capsys.readouterr().out


def test_other_arguments_are_refused(capsys):
    assert main(["all"]) == 2
    assert "usage" in capsys.readouterr().out


def test_the_record_has_every_package():
    packages = {path.parent.name for path in (ROOT / "src/mstar").glob("*/__init__.py")}
    assert packages == last_record().packages.keys() - {"mstar"}
