"""Run directories: permissions, and removal of stale ones."""

import os
import stat
from pathlib import Path

import pytest

from mstar.launch.run_directory import DIRECTORY_PREFIX, LOCK_FILE, RunDirectory, remove_stale_directories


def test_a_run_directory_is_private_and_removable(tmp_path):
    fds = os.listdir("/proc/self/fd")
    run = RunDirectory(tmp_path)
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    (run.path / "a.0").write_text("")
    run.remove()
    assert os.listdir(tmp_path) == []
    assert os.listdir("/proc/self/fd") == fds


def test_only_stale_run_directories_are_removed(tmp_path):
    run = RunDirectory(tmp_path)
    stale, other, elsewhere = (
        tmp_path / f"{DIRECTORY_PREFIX}left",
        tmp_path / f"{DIRECTORY_PREFIX}notes",
        tmp_path / "elsewhere",
    )
    for path in (stale, other, elsewhere):
        path.mkdir()
    for path in (stale, elsewhere):
        (path / LOCK_FILE).touch()
    (tmp_path / f"{DIRECTORY_PREFIX}link").symlink_to(elsewhere)
    remove_stale_directories(tmp_path)
    assert not stale.exists()
    assert (elsewhere / LOCK_FILE).exists()
    assert other.exists(), "without a lock file it is not a run directory"
    assert run.path.exists(), "its launcher is alive"
    run.remove()


def test_another_parent_is_used_if_one_cannot_be_written(tmp_path, caplog):
    run = RunDirectory(Path("/sys"), [tmp_path / "missing", tmp_path])
    assert run.path.parent == tmp_path
    assert len(caplog.records) == 2
    assert caplog.records[0].getMessage().startswith("no run directory in /sys: ")
    run.remove()
    with pytest.raises(OSError, match="/sys"):
        RunDirectory(Path("/sys"), [Path("/sys")])
