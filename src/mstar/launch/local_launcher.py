"""Launcher for one host: child processes of this process, supervised and restarted.

    with LocalLauncher({"tiny": "tiny.py"}) as launcher:
        launcher.add_frontend(frontend)

For several hosts use `RayLauncher`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mstar.config import RuntimeConfig, read_env_variable
from mstar.launch.gpus.assignment import CUDA, assign_gpus, worker_devices, worker_ranks
from mstar.launch.gpus.visible import VARIABLE, count_gpus, visible_gpus
from mstar.launch.launcher import Launcher
from mstar.launch.local_process import LocalProcess, LocalStarter
from mstar.launch.os_process.interpreters import check_interpreter
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
        gpus: Sequence[str] | None = None,
    ) -> None:
        """`gpus` has the identifiers of the visible GPUs; they are found if it is None and a worker needs one."""
        super().__init__(models, placements, options=options, numpy_only=numpy_only)
        self._has_standby = standby
        devices = worker_devices(self._placements.values())
        if gpus is None and any(device.startswith(CUDA) for device in devices.values()):
            gpus = visible_gpus(read_env_variable(VARIABLE), count_gpus())
        self._gpus = assign_gpus(devices, gpus, worker_ranks(self._placements.values()))
        for worker, path in self._interpreters.items():
            check_interpreter(worker, path)

    def _create_starter(self, on_exit: Callable[[ProcessHandle], None]) -> LocalStarter[LocalProcess]:
        preloaded = () if self._options.twin else self._models.values()
        command = (*self.command, str(os.getpid()), *preloaded)
        variables = {worker: {VARIABLE: gpus.identifiers} for worker, gpus in self._gpus.items()}
        return LocalStarter(LocalProcess, command, on_exit, variables, self._interpreters)
