"""Visible NVIDIA GPUs of this host, found without torch and without CUDA.

CUDA numbers the devices that `CUDA_VISIBLE_DEVICES` lists, in that order; without the variable all of them. A device is
identified here as in that variable: by its index, or by its UUID.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

DRIVER_DIRECTORY = Path("/proc/driver/nvidia/gpus")
"""Folder in which the NVIDIA driver has one folder for each GPU."""
LIST_COMMAND = ("nvidia-smi", "-L")
"""Prints one line for each GPU. Used where the driver has no such folder, as in WSL."""
LIST_TIMEOUT_S = 10.0
VARIABLE = "CUDA_VISIBLE_DEVICES"
_IDENTIFIER = re.compile(r"\d+|(GPU|MIG)-.+")


def count_gpus(directory: Path = DRIVER_DIRECTORY, command: Sequence[str] = LIST_COMMAND) -> int:
    """Number of NVIDIA GPUs of this host or container; 0 if there is none or the driver is missing."""
    try:
        if count := len([*directory.iterdir()]):
            return count
    except OSError:
        pass  # no driver, or one without this folder
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=LIST_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def visible_gpus(variable: str | None, installed: int) -> tuple[str, ...] | None:
    """Identifiers of the visible GPUs, in the order in which CUDA numbers them; None if they are not known.

    `variable` is the value of `CUDA_VISIBLE_DEVICES`, None if it is unset; `installed` is the result of `count_gpus`.
    """
    if variable is None:
        return tuple(map(str, range(installed))) or None
    visible: list[str] = []
    for identifier in map(str.strip, variable.split(",")):
        is_missing = identifier.isdigit() and 0 < installed <= int(identifier)
        if not _IDENTIFIER.fullmatch(identifier) or is_missing:
            break  # CUDA ignores an invalid entry and all that follow
        visible.append(identifier)
    return tuple(visible)
