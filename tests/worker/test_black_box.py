"""What a worker noted before it died can be read, or nothing."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from mstar.wire.messages import Suspect
from mstar.worker import black_box
from mstar.worker.black_box import FILE_SIZE_BYTES, BlackBox, read

BATCH = [Suspect("r1", 1 << 40, 3), Suspect("r2", 7, 0)]
OTHERS = [Suspect(f"o{number}", 9, number) for number in range(30)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.0.box"


@pytest.fixture
def box(path):
    box = BlackBox.create(path)
    yield box
    box.close()


def test_a_note_is_read_until_it_is_cleared(box, path):
    assert read(path) == []
    box.write(BATCH)
    assert read(path) == BATCH
    box.write(BATCH[:1])
    assert read(path) == BATCH[:1]
    box.clear()
    assert read(path) == []


def test_it_is_bounded(box, path):
    many = [Suspect(f"{number:0100}", 1, number) for number in range(2000)]
    box.write(many)
    assert read(path) == many[: len(read(path))]
    assert len(read(path)) >= FILE_SIZE_BYTES // 300
    assert path.stat().st_size == FILE_SIZE_BYTES


def test_it_outlives_a_killed_worker(path):
    code = f"""
import os, signal
from pathlib import Path
from mstar.wire.messages import Suspect
from mstar.worker.black_box import BlackBox
BlackBox.create(Path({str(path)!r})).write([Suspect("r1", 5, 6)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert read(path) == [Suspect("r1", 5, 6)]


class Dies(Exception):
    pass


class Memory:
    """Accepts a number of bytes, in the order of writing, and then kills the writer."""

    def __init__(self, data, room):
        self.data, self.room = bytearray(data), room

    def __setitem__(self, where, data):
        taken = data[: self.room]
        self.room -= len(taken)
        start = where.start or 0
        self.data[start : start + len(taken)] = taken
        if len(taken) < len(data):
            raise Dies


@pytest.mark.parametrize(("first", "then"), [(BATCH, OTHERS), (OTHERS, BATCH)])
def test_a_write_that_was_cut_off_is_there_whole_or_not_at_all(box, path, first, then):
    box.write(first)
    before = path.read_bytes()[:1000]
    BlackBox(whole := Memory(before, FILE_SIZE_BYTES)).write(then)
    for room in range(FILE_SIZE_BYTES - whole.room):
        memory = Memory(before, room)
        with pytest.raises(Dies):
            BlackBox(memory).write(then)
        path.write_bytes(memory.data)
        assert read(path) in ([], first, then), f"cut off after {room} bytes"


@pytest.mark.parametrize("data", [b"", b"\x01", b"\xff" * 100, b"\x05\0\0\0abc", os.urandom(FILE_SIZE_BYTES)])
def test_what_is_no_note_reads_as_nothing(path, data):
    path.write_bytes(data)
    assert read(path) == []


def test_a_worker_without_a_file_recorded_nothing(path):
    assert black_box.read(path) == []


def test_without_space_for_the_file_the_worker_keeps_its_records_in_memory(tmp_path, monkeypatch, caplog):
    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    box = BlackBox.create(tmp_path / "a.0.box")
    box.write(BATCH)
    box.clear()
    box.close()
    assert read(tmp_path / "a.0.box") == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("no black box: ")


def test_the_blocks_of_the_file_are_allocated(box, path):
    status = path.stat()
    assert status.st_blocks * 512 >= FILE_SIZE_BYTES


def test_a_file_that_cannot_be_read_accuses_no_request(tmp_path):
    assert read(tmp_path) == []  # a directory
