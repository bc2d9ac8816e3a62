"""Python interpreters of workers that have one of their own, because they need other versions of libraries (vLLM)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from importlib.metadata import version

from mstar.errors import PlacementError, Problem
from mstar.plan.placement import Placement

_CHECK_TIMEOUT_S = 60.0
_PACKAGE = "mstar-serve"
_PRINT_VERSION = f"import mstar; from importlib.metadata import version; print(version({_PACKAGE!r}))"


def worker_interpreters(placements: Iterable[Placement]) -> dict[str, str]:
    """Path of the interpreter of each worker that has one of its own."""
    resources = (placement.worker_resources for placement in placements)
    return {name: worker.python for workers in resources for name, worker in workers.items() if worker.python}


def check_interpreter(worker: str, path: str) -> None:
    """Raise PlacementError unless an interpreter has this version of mstar."""
    own_version = version(_PACKAGE)
    fix = f"{path} -m pip install {_PACKAGE}=={own_version}"
    try:
        run = subprocess.run(
            [path, "-P", "-c", _PRINT_VERSION], capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        what, fix = f"cannot be run: {error}", "set `python` to the interpreter of a virtual environment"
    else:
        its_version = run.stdout.strip()
        if its_version == own_version:
            return
        problem = run.stderr.strip().rpartition("\n")[2] or f"exit status {run.returncode}"
        what = (
            f"has mstar {its_version}, and this is {own_version}" if its_version else f"cannot import mstar: {problem}"
        )
    raise PlacementError("placement", [Problem(f"[workers.{worker}]", f"python = {path!r} {what}", fix)])
