"""Venvs that peers live in: they pin other versions than mstar, so that no two share one. Made once, then found again.

Which peers there are, and how they run, is told elsewhere.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

STEP_TIMEOUT_S = 1800
FOLDER = Path.home() / ".cache" / "mstar-peers"
"""Default folder of the virtual environments."""
_DONE = "prepared.txt"


def find_prepared(venv: Path, wanted: Sequence[str]) -> Path | None:
    """The Python of a venv that was made for just these packages, or None."""
    done = venv / _DONE
    is_there = done.is_file() and done.read_text() == "\n".join(wanted)
    return venv / "bin" / "python" if is_there else None


def make_venv(venv: Path, wanted: Sequence[str], interpreter: str = sys.executable) -> Path:
    """The Python of a venv with these packages, in which torch and transformers are those of the running one."""
    if (python := find_prepared(venv, wanted)) is not None:
        return python
    python = venv / "bin" / "python"
    run_step(f"a venv in {venv}", [interpreter, "-m", "venv", "--clear", "--without-pip", str(venv)])
    # Debian's interpreter has no pip for new venvs, so the running one installs.
    pip, *options = PIP[1:]
    run_step(", ".join(wanted), [sys.executable, "-m", pip, "--python", str(python), *options, *wanted])
    # Only now, and behind the venv's own: pip must not count on it, and what the peer pins comes first.
    (own,) = (venv / "lib").glob("python*/site-packages")
    (own / "running.pth").write_text(sysconfig.get_path("purelib") + "\n")
    mark_prepared(venv, wanted)
    return python


def mark_prepared(venv: Path, wanted: Sequence[str]) -> None:
    """Say that a venv has all that was wanted."""
    (venv / _DONE).write_text("\n".join(wanted))


PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def run_step(what: str, command: Sequence[str]) -> str:
    """Run one command to its end; what it printed."""
    print(f"installing: {what}", flush=True)
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        fix = "try again on a faster connection: what was downloaded is kept by pip"
        raise RuntimeError(f"{what} was not ready after {STEP_TIMEOUT_S} s\n  fix: {fix}") from error
    if run.returncode:
        inputs = "\n    ".join(line[:200] for line in run.stderr.splitlines()[-10:])
        fix = f"reach a package index, or see what this says by hand: {' '.join(command)[:200]}"
        raise RuntimeError(f"{what}: exit status {run.returncode}\n    {inputs}\n  fix: {fix}")
    return run.stdout
