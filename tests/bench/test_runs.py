"""Runs are recorded whatever their end, refused on a busy machine, and repeated in processes of their own."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from bench import __main__ as command
from bench import runs
from bench.claims import Claim, Option
from bench.machine import OtherWork
from tests.bench.toy_history import TOY, cheap

QUIET, BUSY = OtherWork(0.02, 0.01), OtherWork(0.5, 0.01)


@pytest.fixture
def bench(checkout, monkeypatch):
    """`python -m bench` in a checkout of its own, on a quiet machine."""
    monkeypatch.setattr(command, "ROOT", checkout.root)
    monkeypatch.setattr(command, "BENCHES", {"toy": TOY, "broken": replace(TOY, function=f"{TOY.function[:-5]}broken")})
    monkeypatch.setattr(command, "stop_by_exception", lambda: None)
    monkeypatch.setattr(runs, "sample_other_work", lambda samples: QUIET)
    monkeypatch.setattr(runs, "is_own_source", lambda root: True)
    return command.main


@pytest.fixture
def busy(bench, monkeypatch):
    monkeypatch.setattr(runs, "sample_other_work", lambda samples: BUSY)


# ---------------------------------------------------------------- one run
def test_a_run_is_recorded_and_printed(bench, checkout, capsys):
    assert bench(["toy"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == {
        "claim": "a thing costs at most 3 ms",
        "value": 2.0,
        "bar": 3.0,
        "holds": True,
        "more": cheap().details,
    }
    [kept] = checkout.history.records("toy")
    assert kept.claim == cheap()
    assert [(row.name, row.unit, row.values) for row in kept.rows] == [
        ("a thing", "ms", [2, 1, 4]),
        ("  times faster", "x", [3]),
    ]
    assert (kept.series, kept.commit, kept.is_clean, kept.error) == (1, checkout.commit, True, "")
    assert (kept.load.other_before, kept.load.steal_before, kept.load.is_busy) == (0.02, 0.01, False)
    assert None not in (kept.load.load_average, kept.load.other_during, kept.load.steal_during, kept.cpu_s)
    assert "not enough runs: 1 of 5" in checkout.read("docs/performance.md")


def test_five_runs_in_a_clean_checkout_are_published(bench, checkout):
    for _ in range(5):
        assert bench(["toy"]) == 0
    assert "2 ms (2 to 2): met (5 of 5 runs met it)" in checkout.read("README.md")


def test_a_dirty_tree_is_recorded(bench, checkout, capsys):
    (checkout.root / "notes.txt").write_text("changed")
    assert bench(["toy"]) == 0
    assert checkout.history.records("toy")[0].is_clean is False
    assert "does not count" in capsys.readouterr().err


def test_a_tree_that_changes_during_the_run_is_dirty(bench, checkout, monkeypatch):
    def edit():
        (checkout.root / "src/code.py").write_text("x = 2\n")
        return cheap()

    monkeypatch.setattr("tests.bench.toy_history.cheap", edit)
    bench(["toy"])
    assert checkout.history.records("toy")[0].is_clean is False


def test_a_commit_during_the_run_makes_it_dirty(bench, checkout, monkeypatch):
    def commit():
        checkout.make_commit()
        return cheap()

    monkeypatch.setattr("tests.bench.toy_history.cheap", commit)
    bench(["toy"])
    [kept] = checkout.history.records("toy")
    assert (kept.commit, kept.is_clean) == (checkout.commit, False)


def test_a_package_of_another_checkout_is_not_this_commit(bench, checkout, monkeypatch):
    monkeypatch.undo()
    assert not runs.is_own_source(checkout.root)
    assert runs.is_own_source(runs.ROOT)


def test_a_run_that_fails_is_recorded_without_its_message(bench, checkout):
    with pytest.raises(ZeroDivisionError):
        bench(["broken"])
    [kept] = checkout.history.records("broken")
    assert (kept.claim, kept.error) == (None, "ZeroDivisionError")
    assert "must not be recorded" not in checkout.read("bench/results/broken.jsonl")


def test_the_series_of_the_bench_is_recorded(bench, checkout, monkeypatch):
    monkeypatch.setitem(command.BENCHES, "toy", replace(TOY, series=3))
    bench(["toy"])
    assert checkout.history.records("toy")[0].series == 3


def test_what_cannot_be_recorded_is_printed_all_the_same(bench, checkout, capsys):
    (checkout.root / "bench").write_text("a file is in the way")
    assert bench(["toy"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["holds"]
    assert "not recorded" in printed.err


def test_a_run_that_is_stopped_is_recorded(checkout):
    script = (
        "import sys, time; from pathlib import Path\n"
        "from bench import machine, runs; from tests.bench import toy_history\n"
        "def waits(): print('started', flush=True); time.sleep(60)\n"
        "machine.SAMPLE_S, toy_history.cheap = 0.0, waits\n"
        "runs.stop_by_exception()\n"
        "runs.measure('toy', toy_history.TOY, allow_busy=True, root=Path(sys.argv[1]))\n"
    )
    words = [sys.executable, "-c", script, str(checkout.root)]
    with subprocess.Popen(words, cwd=runs.ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "started\n"
        child.terminate()
        assert child.wait(30) != 0
    assert [record.error for record in checkout.history.records("toy")] == ["SystemExit"]


# ---------------------------------------------------------------- a busy machine
@pytest.mark.usefixtures("busy")
def test_a_speed_is_not_measured_on_a_busy_machine(bench, checkout, capsys):
    assert bench(["toy"]) == runs.REFUSED
    assert checkout.history.records("toy") == []
    assert "toy was not started: the machine is busy: other processes use 50%" in capsys.readouterr().err


@pytest.mark.usefixtures("busy")
def test_a_speed_can_be_measured_there_and_that_is_recorded(bench, checkout):
    assert bench(["toy", "--busy"]) == 0
    assert checkout.history.records("toy")[0].load.is_busy is True


@pytest.mark.usefixtures("busy")
def test_a_count_is_taken_there(bench, checkout, monkeypatch):
    monkeypatch.setitem(command.BENCHES, "toy", replace(TOY, is_speed=False))
    assert bench(["toy"]) == 0
    assert checkout.history.records("toy")[0].load.is_busy is True


# ---------------------------------------------------------------- several
@pytest.fixture
def children(bench, checkout, monkeypatch):
    """Children that add one run each: the values that are left, where None is a crash."""
    left = []

    def run(name, *, allow_busy, root, options):
        if (value := left.pop(0)) is not None:
            checkout.add_runs(value, name=name)
        return "ENDED WITHOUT A CLAIM, exit code 1"

    monkeypatch.setattr(runs, "run_in_subprocess", run)
    return left


def test_all_targets_met_is_success(bench, children, capsys):
    children += [1.0, 2.0, 1.0]
    assert bench(["toy", "--runs", "3"]) == 0
    printed = capsys.readouterr().out
    assert "[1/3] toy, run 1 of 3: no earlier run" in printed
    assert "[3/3] toy, run 3 of 3: about 7 s, all that is left about 0.1 min" in printed
    assert "[3/3] toy, run 3 of 3: met, 1 (target 3)" in printed
    assert printed.endswith("toy                  met 3 of 3\n")


def test_one_missed_target_is_no_success(bench, children, capsys):
    children += [1.0, 4.0]
    assert bench(["toy", "--runs", "2"]) == 1
    assert "[2/2] toy, run 2 of 2: MISSED, 4 (target 3)" in capsys.readouterr().out


def test_a_failure_does_not_stop_the_others(bench, children, capsys):
    children += [None, 1.0]
    assert bench(["all"]) == 1
    printed = capsys.readouterr().out
    assert "[1/2] toy, run 1 of 1: ENDED WITHOUT A CLAIM, exit code 1" in printed
    assert printed.endswith("toy                  met 0 of 1\nbroken               met 1 of 1\n")


def test_a_child_is_a_process_of_its_own(checkout, monkeypatch):
    (checkout.root / "bench").mkdir()
    (checkout.root / "bench/__main__.py").write_text("import sys; sys.exit(3 if '--busy' in sys.argv else 7)")
    monkeypatch.setenv("PYTHONPATH", "")
    assert runs.run_in_subprocess("toy", root=checkout.root) == "ENDED WITHOUT A CLAIM, exit code 7"
    assert runs.run_in_subprocess("toy", allow_busy=True, root=checkout.root) == "REFUSED: busy machine"


def test_a_child_that_does_not_end_is_stopped(checkout, monkeypatch):
    (checkout.root / "bench").mkdir()
    (checkout.root / "bench/__main__.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(runs, "TIMEOUT_S", 0.2)
    monkeypatch.setenv("PYTHONPATH", "")
    begun = time.monotonic()
    assert runs.run_in_subprocess("toy", root=checkout.root) == "STOPPED after 0 s"
    assert time.monotonic() - begun < 30


def test_a_child_that_ignores_that_is_killed(checkout, monkeypatch):
    (checkout.root / "bench").mkdir()
    ignores = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: open('asked', 'w'))"
    (checkout.root / "bench/__main__.py").write_text(f"{ignores}\nwhile True: time.sleep(1)")
    monkeypatch.setattr(runs, "TIMEOUT_S", 4.0)
    monkeypatch.setattr(runs, "KILL_AFTER_S", 1.0)
    monkeypatch.setenv("PYTHONPATH", "")
    assert runs.run_in_subprocess("toy", root=checkout.root) == "STOPPED after 4 s"
    assert (checkout.root / "asked").exists()


def test_unknown_names_are_refused(bench, capsys):
    assert bench(["toy", "no-such"]) == runs.USAGE
    assert "NAME one of: toy, broken or all, or page" in capsys.readouterr().out


# ---------------------------------------------------------------- options of one benchmark
LENGTH = Option("minutes", float, "Minutes (default 2).")


def test_an_option_reaches_the_function_of_its_benchmark(bench, checkout, monkeypatch):
    lengths = []

    def run(minutes=2.0):
        lengths.append(minutes)
        return Claim("as long as set", minutes, 3.0, is_met=True)

    monkeypatch.setattr("tests.bench.toy_history.cheap", run)
    monkeypatch.setitem(command.BENCHES, "toy", replace(TOY, options=(LENGTH,)))
    assert bench(["toy", "--minutes", "0.5"]) == 0
    assert bench(["toy"]) == 0
    assert lengths == [0.5, 2.0]
    assert [record.claim.value for record in checkout.history.records("toy")] == lengths


def test_an_option_is_passed_to_every_process_of_several_runs(checkout, monkeypatch):
    (checkout.root / "bench").mkdir()
    words = "['toy', '--minutes', '0.5']"
    (checkout.root / "bench/__main__.py").write_text(f"import sys; sys.exit(5 if sys.argv[1:] == {words} else 7)")
    monkeypatch.setenv("PYTHONPATH", "")
    end = runs.run_in_subprocess("toy", root=checkout.root, options={"minutes": 0.5})
    assert end == "ENDED WITHOUT A CLAIM, exit code 5"


def test_an_option_of_another_benchmark_is_rejected(bench, capsys, monkeypatch):
    monkeypatch.setitem(command.BENCHES, "broken", replace(TOY, options=(LENGTH,)))
    assert bench(["toy", "--minutes", "1"]) == runs.USAGE
    assert "toy has no option --minutes" in capsys.readouterr().out
    assert bench(["toy", "broken", "--minutes", "1"]) == runs.USAGE
