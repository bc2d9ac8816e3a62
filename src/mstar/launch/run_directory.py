"""The run directory: where the processes of one launcher meet. Only its user may look in.

It holds a lock as long as its launcher lives, so that one whose launcher was killed is known, and removed by the next.
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
    """A fresh directory of mode 0700, until `remove`."""

    def __init__(self, root: Path) -> None:
        remove_stale_directories(root)
        # Under a hidden name until it is locked: an unlocked one looks left behind.
        hidden = Path(tempfile.mkdtemp(prefix=f".{DIRECTORY_PREFIX}", dir=root))
        self._lock = os.open(hidden / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = hidden.rename(root / hidden.name[1:])

    def remove(self) -> None:
        """Delete it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale_directories(root: Path) -> None:
    """Remove the run directories that this user's killed launchers left behind."""
    for path in root.glob(f"{DIRECTORY_PREFIX}*"):
        with suppress(OSError):  # it is locked, was never one of ours, or is gone already
            if path.lstat().st_uid != os.getuid():
                continue
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
