"""OpenVINO GenAI as a peer: its continuous batching, with a thread on every core."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bench.peers.engine_process import EngineProcess
from bench.peers.venvs import FOLDER, PIP, find_prepared, mark_prepared, run_step

OPENVINO = "openvino"
"""Name of its venv."""
TORCH = "torch==2.13.0"
RUNTIME = ("openvino-genai==2026.4.1.0", "transformers==5.5.4", "huggingface-hub<1.22")
CONVERTER = ("optimum-intel==2.2.0", "optimum==2.3.0", "nncf==3.4.0")
"""Converts models. It also asks for torchvision, which text does not need and which has no CPU build for this torch."""
CONVERTER_NEEDS = (
    "networkx<=3.6.1",
    "ninja",
    "pydot<=4.0.1",
    "scikit-learn",
    "scipy",
    "tabulate",
    "rich",
    "psutil",
    "requests",
    "setuptools",
)
WANTED = (TORCH, *RUNTIME, *CONVERTER, *CONVERTER_NEEDS)
WORKER = Path(__file__).parent / "openvino_worker.py"
MAX_SEQUENCES, CACHE_GB = 32, 1


def prepare_openvino(folder: Path = FOLDER) -> Path:
    """The Python of its venv, which is made if it is not there."""
    venv = folder / OPENVINO
    if (python := find_prepared(venv, WANTED)) is not None:
        return python
    python = venv / "bin/python"
    run_step(f"a venv in {venv}", [sys.executable, "-m", "venv", "--clear", str(venv)])
    run_step(f"{TORCH}, first and alone", [str(python), *PIP, TORCH])
    run_step(", ".join(RUNTIME), [str(python), *PIP, *RUNTIME, *CONVERTER_NEEDS])
    run_step(", ".join(CONVERTER), [str(python), *PIP, "--no-deps", *CONVERTER])
    mark_prepared(venv, WANTED)
    return python


def openvino_peer(model: Path, folder: Path = FOLDER) -> EngineProcess:
    """OpenVINO with the transformers model in this folder."""
    python = find_prepared(folder / OPENVINO, WANTED)
    if python is None:
        raise RuntimeError(f"OpenVINO is not installed\n  fix: python -m bench.peers.install {OPENVINO}")
    threads = len(os.sched_getaffinity(0))
    settings = {"model": str(model), "threads": threads, "max_sequences": MAX_SEQUENCES, "cache_gb": CACHE_GB}
    environment = {"PATH": f"{python.parent}:{os.defpath}", "HOME": str(folder / OPENVINO), "HF_HUB_OFFLINE": "1"}
    return EngineProcess("OpenVINO", [str(python), str(WORKER), json.dumps(settings)], environment)
