"""Run directory: private directory (mode 0700) with the sockets and black boxes of one launcher.

The launcher holds a file lock in it while it lives. The next launcher removes directories whose lock is free. If the
configured parent cannot be written, the directory is created in the first of `FALLBACK_ROOTS` that can.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

DIRECTORY_PREFIX = "mstar-run-"
LOCK_FILE = "launcher.lock"
FALLBACK_ROOTS = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))

log = logging.getLogger("mstar.launch")


class RunDirectory:
    """A new directory of mode 0700, until `remove`. Raises OSError if no parent can be written."""

    def __init__(self, root: Path, fallbacks: Iterable[Path] = FALLBACK_ROOTS) -> None:
        self.path, self._lock = _create_in_first([root, *fallbacks])

    def remove(self) -> None:
        """Delete the directory with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _create_in_first(roots: Sequence[Path]) -> tuple[Path, int]:
    """Create the directory in the first of these parents that can be written; returns it with its lock."""
    for root in roots[:-1]:
        try:
            return _create_locked(root)
        except OSError as error:
            log.warning("no run directory in %s: %s", root, error)
    return _create_locked(roots[-1])


def _create_locked(root: Path) -> tuple[Path, int]:
    remove_stale_directories(root)
    # Hidden until it is locked: an unlocked one would be removed as stale.
    hidden = Path(tempfile.mkdtemp(prefix=f".{DIRECTORY_PREFIX}", dir=root))
    lock = os.open(hidden / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return hidden.rename(root / hidden.name[1:]), lock


def remove_stale_directories(root: Path) -> None:
    """Remove the run directories that crashed launchers of this user left behind."""
    for path in root.glob(f"{DIRECTORY_PREFIX}*"):
        with suppress(OSError):  # locked, not a run directory, or already removed
            if path.lstat().st_uid != os.getuid():
                continue
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
