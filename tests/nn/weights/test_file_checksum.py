"""Checksums of files are computed once, and again when the file changes."""

import hashlib
import os

import pytest

from mstar.nn.weights import file_checksum
from mstar.nn.weights.file_checksum import file_sha256


@pytest.fixture(autouse=True)
def computed(tmp_path, monkeypatch):
    """Paths whose checksum was computed, with an empty directory for stored checksums."""
    compute, paths = file_checksum.compute_sha256, []
    monkeypatch.setattr(file_checksum, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(file_checksum, "compute_sha256", lambda path: paths.append(path) or compute(path))
    monkeypatch.setattr(file_checksum, "_MIN_AGE_S", -1.0)
    return paths


def digest(data):
    return hashlib.sha256(data).hexdigest()


def test_it_is_computed_once(tmp_path, computed):
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    assert [file_sha256(path) for _ in range(3)] == [digest(b"abc")] * 3
    assert len(computed) == 1


def test_a_change_of_equal_size_and_time_is_noticed(tmp_path, computed):
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    before = path.stat()
    file_sha256(path)
    path.write_bytes(b"abd")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_sha256(path) == digest(b"abd")
    assert len(computed) == 2


def test_a_file_that_was_just_written_is_computed_each_time(tmp_path, computed, monkeypatch):
    monkeypatch.setattr(file_checksum, "_MIN_AGE_S", 60.0)
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    assert file_sha256(path) == file_sha256(path) == digest(b"abc")
    assert len(computed) == 2


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"file": 1}'])
def test_a_damaged_store_is_replaced(tmp_path, computed, damage):
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    file_sha256(path)
    (stored,) = (tmp_path / "cache" / "checksums").iterdir()
    stored.write_bytes(damage)
    assert file_sha256(path) == file_sha256(path) == digest(b"abc")
    assert len(computed) == 2


def test_without_a_directory_it_is_computed(tmp_path, computed):
    (tmp_path / "cache").write_text("a file, so that no directory can be made here")
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    assert file_sha256(path) == digest(b"abc")
