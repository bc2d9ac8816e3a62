"""Run directory: private directory (mode 0700) with the sockets and black boxes of one launcher.

The launcher holds a file lock in it while it lives. The next launcher removes directories whose lock is free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

DIRECTORY_PREFIX = "mstar-run-"
LOCK_FILE = "launcher.lock"


class RunDirectory:
    """A new directory of mode 0700, until `remove`."""

    def __init__(self, root: Path) -> None:
        remove_stale_directories(root)
        # Hidden until it is locked: an unlocked one would be removed as stale.
        hidden = Path(tempfile.mkdtemp(prefix=f".{DIRECTORY_PREFIX}", dir=root))
        self._lock = os.open(hidden / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = hidden.rename(root / hidden.name[1:])

    def remove(self) -> None:
        """Delete the directory with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


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
