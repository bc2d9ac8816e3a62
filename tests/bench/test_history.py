"""Runs are appended as they were and never removed."""

import json
import subprocess

import pytest

from bench.claims import Row
from bench.history import FOLDER, History, parse_record, render_record
from bench.registry import BENCHES
from bench.repository import ROOT, Repository
from tests.bench.toy_history import make_record


def test_a_run_is_read_as_it_was_written(checkout):
    rows = [Row("a word", "ms", [float(value % 997) for value in range(5000)]), Row("  of it", "x", [0.123456789])]
    written = make_record(2.5, "abc", rows, details={"unit": "ms", "curve": {"x": [1]}})
    checkout.history.append("toy", written)
    [read] = checkout.history.records("toy")
    assert read.rows[0].values == rows[0].values
    assert read.rows[1].values == [0.123457]
    assert (read.claim, read.load, read.machine) == (written.claim, written.load, written.machine)
    assert (read.date, read.series, read.commit, read.is_clean) == ("2026-01-02 03:04:05", 1, "abc", True)
    assert (read.took_s, read.cpu_s, read.error) == (6.7, 5.5, "")


def test_no_run_is_dropped(checkout):
    checkout.add_runs(*range(300))
    assert [record.claim.value for record in checkout.history.records("toy")] == [*range(300)]


def test_appending_changes_no_earlier_line(checkout):
    checkout.add_runs(1.0)
    before = checkout.read("bench/results/toy.jsonl")
    checkout.add_runs(2.0)
    after = checkout.read("bench/results/toy.jsonl")
    assert after.startswith(before)
    assert after.count("\n") == 2


def test_what_was_not_recorded_is_unknown():
    record = make_record(1.0, "unknown", is_clean=None, cpu_s=None, is_busy=None)
    fields = json.loads(render_record(record))
    assert (fields["is_clean"], fields["cpu_s"], fields["load"]["is_busy"]) == ("unknown",) * 3
    read = parse_record(render_record(record))
    assert (read.is_clean, read.cpu_s, read.load.is_busy, read.commit) == (None, None, None, "unknown")


def test_a_run_without_a_claim_is_kept():
    read = parse_record(render_record(make_record(1.0, "abc", claim=None, error="ValueError")))
    assert (read.claim, read.error) == (None, "ValueError")


def test_a_bench_without_a_file_has_no_runs(checkout):
    assert checkout.history.records("toy") == []


# ---------------------------------------------------------------- this repository
def test_every_file_of_the_history_is_of_a_bench():
    names = {path.name for path in (ROOT / FOLDER).iterdir()}
    assert names <= {f"{name}.jsonl" for name in BENCHES}


@pytest.mark.parametrize("name", BENCHES)
def test_every_recorded_run_can_be_read(name):
    for record in History().records(name):
        assert record.claim or record.error
        assert 1 <= record.series <= BENCHES[name].series


@pytest.mark.skipif(not Repository().has_history(), reason="needs the git history: a clone that is not shallow")
def test_every_line_that_was_ever_committed_is_still_there():
    words = ["git", "log", "-p", "-m", "--unified=0", "--format=", "--", f"{FOLDER}/*.jsonl"]
    patch = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    committed = {line[1:] for line in patch.splitlines() if line.startswith("+{")}
    present = {line for path in (ROOT / FOLDER).glob("*.jsonl") for line in path.read_text("utf-8").splitlines()}
    assert committed <= present, "fix: runs are never deleted; restore the lines"
