"""The launcher of one machine: plain processes under one parent, which watches them and starts them again.

    with Local({"tiny": "tiny.py"}) as local:
        local.add(front_end)

Other machines are not its business.
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
    """A deployment on this machine. A *spare* is a process without a name that can take the place of a dead one."""

    command: tuple[str, ...] = (sys.executable, "-P", "-m", "mstar.launch.child_main")
    """What starts a child, before its arguments."""

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
