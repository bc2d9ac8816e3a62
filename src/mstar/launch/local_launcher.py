"""Launcher for one host: child processes of this process, supervised and restarted.

    with LocalLauncher({"tiny": "tiny.py"}) as launcher:
        launcher.add_frontend(frontend)

For several hosts use `RayLauncher`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mstar.config import RuntimeConfig
from mstar.launch.launcher import Launcher
from mstar.launch.local_process import LocalProcess, LocalStarter
from mstar.launch.process_handle import ProcessHandle


class LocalLauncher(Launcher):
    """A deployment on this host. `standby` keeps a hot standby process that replaces a crashed one at once."""

    command: tuple[str, ...] = (sys.executable, "-P", "-m", "mstar.launch.child_main")
    """Command line of a child, before its arguments."""

    def __init__(
        self,
        models: Mapping[str, str],
        placements: Mapping[str, Path | str | None] | None = None,
        *,
        options: RuntimeConfig | None = None,
        standby: bool = True,
        numpy_only: bool = False,
    ) -> None:
        super().__init__(models, placements, options=options, numpy_only=numpy_only)
        self._has_standby = standby

    def _create_starter(self, on_exit: Callable[[ProcessHandle], None]) -> LocalStarter[LocalProcess]:
        return LocalStarter(LocalProcess, (*self.command, str(os.getpid()), *self._models.values()), on_exit)
