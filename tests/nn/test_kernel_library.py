"""The library of the native kernels is built once per machine, and without it torch is used."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
import torch

from mstar.nn import kernel_library, native


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """As on a machine where the kernels were never built."""
    monkeypatch.setattr(native, "cache_directory", lambda: tmp_path / "kernels")
    native._library.cache_clear()
    yield tmp_path
    native._library.cache_clear()


def is_native_with_log_line(caplog):
    """Whether there are kernels, and the only log line."""
    caplog.set_level("INFO", "mstar.nn")
    is_built = native.is_native(torch.float32, torch.device("cpu"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line
    return is_built, line


def test_without_a_compiler_one_line_says_what_to_do(elsewhere, monkeypatch, caplog):
    monkeypatch.setattr(kernel_library.shutil, "which", lambda _: None)
    assert is_native_with_log_line(caplog) == (False, "no C++ compiler, so steps are slower; fix: install g++")


def test_a_compiler_that_fails_is_quoted(elsewhere, monkeypatch, caplog):
    broken = elsewhere / "g++"
    broken.write_text("#!/bin/sh\necho too >&2\necho old >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(kernel_library.shutil, "which", lambda _: str(broken))
    assert not native.is_native(torch.float32, torch.device("cpu"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("cannot compile the native kernels, so steps are slower; fix: install a current g++ (too old)")
    assert list((elsewhere / "kernels").iterdir()) == [], "nothing half made is left"


def test_they_are_built_once_and_one_line_says_so(elsewhere, caplog):
    is_built, line = is_native_with_log_line(caplog)
    assert is_built
    assert line == "compiling the native kernels for this CPU, once: about 10 s"
    (built,) = (elsewhere / "kernels").iterdir()
    before = built.stat().st_mtime_ns
    native._library.cache_clear()
    assert native.is_native(torch.float32, torch.device("cpu"))
    assert built.stat().st_mtime_ns == before
    assert len(caplog.records) == 1


def test_processes_that_need_them_at_once_build_them_once(tmp_path):
    path = tmp_path / "kernels" / "kernels.so"
    code = (
        "import logging, pathlib; from mstar.nn.kernel_library import compile_library; "
        f"logging.basicConfig(level='INFO'); compile_library({shutil.which('g++')!r}, pathlib.Path({str(path)!r}))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    logs = "".join(process.communicate()[1] for process in processes)
    assert [process.returncode for process in processes] == [0, 0, 0], logs
    assert logs.count("compiling the native kernels") == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["kernels.so"]


def test_the_files_of_a_process_that_was_killed_are_removed_by_the_next_build(tmp_path):
    path, pid_file, compiler = tmp_path / "kernels" / "kernels.so", tmp_path / "pid", tmp_path / "g++"
    code = (
        "import pathlib; from mstar.nn.kernel_library import compile_library; "
        f"compile_library({str(compiler)!r}, pathlib.Path({str(path)!r}))"
    )
    compiler.write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec sleep 60\n")
    compiler.chmod(0o755)
    killed = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    while not (pid_file.exists() and pid_file.read_text()):
        assert killed.poll() is None
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len([*path.parent.iterdir()]) == 1
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho > "$2"\n')
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [entry.name for entry in path.parent.iterdir()] == ["kernels.so"]


@pytest.fixture
def no_home(monkeypatch, tmp_path):
    """As in a container with a read-only root: no file can be created in the home directory."""
    monkeypatch.setenv("HOME", "/sys")
    monkeypatch.setattr(kernel_library.tempfile, "tempdir", str(tmp_path))
    native._library.cache_clear()
    yield tmp_path / f"mstar-{os.getuid()}"
    native._library.cache_clear()


def test_a_read_only_home_uses_a_private_temporary_directory(no_home, caplog):
    assert native.is_native(torch.float32, torch.device("cpu"))
    assert [path.suffix for path in no_home.iterdir()] == [".so"]
    assert stat.S_IMODE(no_home.stat().st_mode) == 0o700
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"native kernels are in {no_home}: ")


@pytest.mark.parametrize("attack", ["a link", "writable by others", "a file"])
def test_a_foreign_temporary_directory_is_not_used(no_home, attack, caplog):
    if attack == "a link":
        no_home.symlink_to(no_home.parent)
    elif attack == "a file":
        no_home.touch()
    else:
        no_home.mkdir()
        no_home.chmod(0o777)
    is_built, line = is_native_with_log_line(caplog)
    assert not is_built
    assert line.startswith("the native kernels cannot be stored, so steps are slower; fix: give the process a home")


def test_without_any_directory_torch_is_used(no_home, monkeypatch, caplog):
    monkeypatch.setattr(kernel_library.tempfile, "tempdir", "/sys")
    is_built, line = is_native_with_log_line(caplog)
    assert not is_built
    assert "cannot be stored" in line


def join_compiler():
    """Wait for the build in the background, if it has not ended."""
    for thread in threading.enumerate():
        if thread.name == "compiler":
            thread.join()


def test_they_are_built_in_the_background(elsewhere, monkeypatch, caplog):
    caplog.set_level("INFO", "mstar.nn")
    monkeypatch.setattr(kernel_library, "cache_directory", native.cache_directory)
    kernel_library.start_compiling()
    join_compiler()
    assert native.is_native(torch.float32, torch.device("cpu"))
    assert [record.threadName for record in caplog.records] == ["compiler"]


def test_a_build_in_the_background_that_fails_says_nothing(elsewhere, monkeypatch, caplog):
    monkeypatch.setattr(kernel_library, "cache_directory", native.cache_directory)
    monkeypatch.setattr(kernel_library, "find_compiler", lambda: "/bin/false")
    kernel_library.start_compiling()
    join_compiler()
    assert caplog.records == []
