"""The entry of every child of the launcher: `python -m mstar.launch.child_main LAUNCHER_PID [MODEL...]`.

It dies with its launcher, reads its settings from stdin and becomes what they are for. A child that has none yet is a
*spare*: it imports ahead what it will need, so that it can take the place of a dead one at once. It loads no weights.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

import msgspec

from mstar.config import ConductorConfig, WorkerConfig
from mstar.errors import LoadError, MstarError
from mstar.server.telemetry import logs
from mstar.walk.load import load_model

MAIN_MODULES: dict[type, str] = {
    ConductorConfig: "mstar.conductor.main",
    WorkerConfig: "mstar.worker.main",
}
"""The module whose `main(settings)` is run."""

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Be a child; the process's exit status."""
    launcher, *models = arguments
    faulthandler.enable()  # a crash in native code says where
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears ^C, and ends its children in order
    if not _die_with_parent(int(launcher)):
        return 1
    if not select.select([0], [], [], 0)[0]:
        _preload_modules(models)
    data = sys.stdin.buffer.read()
    if not data:  # the launcher has closed the pipe: a spare that was never needed
        return 0
    settings = msgspec.msgpack.decode(data, type=ConductorConfig | WorkerConfig)
    try:
        with logs.logging_to_stderr(settings.options.log_format):
            import_module(MAIN_MODULES[type(settings)]).main(settings)
    except MstarError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _die_with_parent(launcher: int) -> bool:
    """Have the kernel kill this process when the launcher's thread ends; False if that is over already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == launcher


def _preload_modules(models: Sequence[str]) -> None:
    for module in MAIN_MODULES.values():
        import_module(module)
    for model in models:
        with suppress(LoadError):  # who is to serve it will say so
            load_model(model)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
