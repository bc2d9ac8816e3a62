"""The nightly run: every part has tests, a part that fails or hangs is recorded, and results are only appended."""

import json

from tools.nightly import PARTS, ROOT, Part, append, arguments, count_cases, main, run_part

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
    return Part((str(path),), limit_s, ("-p", "no:cacheprovider", "--rootdir", str(tmp_path)))


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


def test_every_path_is_in_one_part():
    assert arguments(PARTS["kills"]) == ["tests/chaos/test_kill.py"]
    assert "--ignore=tests/chaos/test_kill.py" in arguments(PARTS["processes"])
    assert "--ignore=tests/nn/lm/test_smollm2.py" in arguments(PARTS["networks"])
    ignored = {word.removeprefix("--ignore=") for word in arguments(PARTS["others"])[1:]}
    assert ignored == {path for name, part in PARTS.items() if name != "others" for path in part.paths}
    assert all((ROOT / path).exists() for path in ignored)


def test_every_named_part_has_nightly_tests():
    for name, part in PARTS.items():
        files = [file for path in part.paths for file in files_of(ROOT / path)]
        assert any("pytest.mark.nightly" in file.read_text("utf-8") for file in files), name


def files_of(path):
    return [path] if path.is_file() else path.rglob("test_*.py")
