"""Entry point of child processes: `python -m mstar.launch.child_main LAUNCHER_PID [MODEL...]`.

A child dies with its launcher (PR_SET_PDEATHSIG), reads its configuration from stdin and becomes a conductor, a worker
or a front end. A child without a configuration is a *hot standby*: it imports modules and maps cached weights ahead, so
that it can replace a crashed process at once. Weights that are not in the graph cache are loaded after that.
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

from mstar import process_tuning
from mstar.config import (
    ConductorConfig,
    ExpertsConfig,
    FrontendConfig,
    RankConfig,
    WorkerConfig,
    configure_vllm,
    disable_telemetry,
)
from mstar.errors import MstarError
from mstar.server.telemetry import logs
from mstar.walk.load import load_model

MAIN_MODULES: dict[type, str] = {
    ConductorConfig: "mstar.conductor.main",
    FrontendConfig: "mstar.launch.frontends.main",
    WorkerConfig: "mstar.worker.main",
    RankConfig: "mstar.worker.ranks.main",
    ExpertsConfig: "mstar.worker.experts.main",
}
"""Module whose `main(config)` runs, by type of the configuration."""

_ROLES: dict[type, str] = {
    ConductorConfig: "conductor",
    FrontendConfig: "front",
    WorkerConfig: "worker",
    RankConfig: "worker",
    ExpertsConfig: "worker",
}
"""Role of a process in its title, which is left out if its name begins with it."""
_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Run a child process. Returns the exit status."""
    launcher, *models = arguments
    faulthandler.enable()  # a crash in native code prints a traceback
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the launcher, which stops its children in order
    if not _die_with_parent(int(launcher)):
        return 1
    disable_telemetry()  # before any model is imported
    configure_vllm()
    if not select.select([0], [], [], 0)[0]:
        _preload_modules(models)
    process_tuning.set_process_title("mstar: standby")
    data = sys.stdin.buffer.read()
    if not data:  # the launcher closed the pipe: an unused standby
        return 0
    config = msgspec.msgpack.decode(
        data, type=ConductorConfig | FrontendConfig | WorkerConfig | RankConfig | ExpertsConfig
    )
    try:
        role = _ROLES[type(config)]
        title = config.name if config.name.startswith(role) else f"{role} {config.name}"
        process_tuning.set_process_title(f"mstar: {title}")
        with logs.logging_in_child(config.options.log_format, config.name, config.options.log_level):
            import_module(MAIN_MODULES[type(config)]).main(config)
    except MstarError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _die_with_parent(launcher: int) -> bool:
    """Have the kernel kill this process when the thread that started it ends; False if it has ended already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == launcher


def _preload_modules(models: Sequence[str]) -> None:
    for config_type, module in MAIN_MODULES.items():
        if config_type in {ConductorConfig, WorkerConfig}:  # a standby replaces one of these
            import_module(module)
    for model in models:
        with suppress(Exception):  # reported by the process that serves it
            for component in load_model(model).components().values():
                component.preload()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
