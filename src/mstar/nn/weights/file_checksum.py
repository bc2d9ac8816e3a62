"""Checksums of weight files, computed once: SHA-256 of a gigabyte takes seconds, at every start and in every process.

A checksum is stored with the file's size, times and inode, and computed again if one of them changes. Without a
directory to store it in, it is computed each time.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from mstar.nn.cache_directory import cache_directory

_MIN_AGE_S = 2.0
"""Minimum age of a file whose checksum is stored: a later change could have the same time stamp."""


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    path = path.resolve()
    status = path.stat()
    identity = [str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
    with suppress(OSError, RuntimeError, ValueError, LookupError, TypeError):
        known = json.loads(_store(path).read_bytes())
        if known["file"] == identity:
            return str(known["sha256"])
    digest = compute_sha256(path)
    if time.time() - max(status.st_mtime, status.st_ctime) > _MIN_AGE_S:
        with suppress(OSError, RuntimeError):
            stored = _store(path)
            stored.parent.mkdir(parents=True, exist_ok=True)
            content = json.dumps({"file": identity, "sha256": digest})
            with NamedTemporaryFile("w", dir=stored.parent, suffix=".new", delete=False) as temporary:
                temporary.write(content)
            Path(temporary.name).replace(stored)
    return digest


def _store(path: Path) -> Path:
    """File that holds the checksum of a path."""
    name = hashlib.blake2b(str(path).encode(), digest_size=16).hexdigest()
    return cache_directory() / "checksums" / f"{name}.json"


def compute_sha256(path: Path) -> str:
    """SHA-256 of a file, read now."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
