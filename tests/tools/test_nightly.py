"""The nightly run: every part has tests, a part that fails or hangs is recorded, and results are only appended."""

import json
import subprocess
import sys

import pytest

from tools.nightly import PARTS, ROOT, Part, append, count_cases, main, run_part

HANG = "import pytest, time\n@pytest.mark.nightly\ndef test_hangs(): time.sleep(60)\n"
MIXED = """import pytest
pytestmark = pytest.mark.nightly
def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip
def test_skips(): pass
"""


def part_of(tmp_path, text, limit_s=60.0):
    path = tmp_path / "test_part.py"
    path.write_text(text)
    return Part((str(path), "-p", "no:cacheprovider", "--rootdir", str(tmp_path)), limit_s)


def test_passed_failed_and_skipped_tests_are_counted(tmp_path):
    result = run_part("mixed", part_of(tmp_path, MIXED))
    assert (result.passed, result.failed, result.skipped, result.status) == (1, 1, 1, "failed")


def test_a_part_that_exceeds_its_limit_is_stopped(tmp_path):
    result = run_part("hang", part_of(tmp_path, HANG, limit_s=3.0))
    assert result.status == "stopped"
    assert result.seconds < 30


def test_results_are_appended(tmp_path):
    path = tmp_path / "nightly.jsonl"
    result = run_part("mixed", part_of(tmp_path, MIXED))
    append(path, result)
    append(path, result)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["part"] for line in lines] == ["mixed", "mixed"]
    assert lines[0]["commit"]


def test_errors_count_as_failures():
    assert count_cases('<testsuites><testsuite tests="5" failures="1" errors="1" skipped="1"/></testsuites>') == (
        2,
        2,
        1,
    )


def test_an_unknown_part_is_refused(capsys):
    assert main(["unknown"]) == 2
    assert "fix: use kills" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(PARTS) - {"others"}))
def test_every_named_part_has_nightly_tests(name):
    command = [sys.executable, "-m", "pytest", "-m", "nightly", "--collect-only", "-q", *PARTS[name].arguments]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stdout
