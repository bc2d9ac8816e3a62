"""Run directories are private, and those of dead launchers are removed."""

import os
import stat

from mstar.launch.run_directory import DIRECTORY_PREFIX, LOCK_FILE, RunDirectory, remove_stale_directories


def test_it_is_private_and_can_be_removed(tmp_path):
    fds = os.listdir("/proc/self/fd")
    run = RunDirectory(tmp_path)
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    (run.path / "a.0").write_text("")
    run.remove()
    assert os.listdir(tmp_path) == []
    assert os.listdir("/proc/self/fd") == fds


def test_only_what_dead_launchers_left_is_swept(tmp_path):
    run = RunDirectory(tmp_path)
    left, other, elsewhere = tmp_path / f"{DIRECTORY_PREFIX}left", tmp_path / f"{DIRECTORY_PREFIX}notes", tmp_path / "elsewhere"
    for path in (left, other, elsewhere):
        path.mkdir()
    for path in (left, elsewhere):
        (path / LOCK_FILE).touch()
    (tmp_path / f"{DIRECTORY_PREFIX}link").symlink_to(elsewhere)
    remove_stale_directories(tmp_path)
    assert not left.exists()
    assert (elsewhere / LOCK_FILE).exists()
    assert other.exists(), "without a lock it is nobody's run directory"
    assert run.path.exists(), "its launcher lives"
    run.remove()
