"""llama.cpp as a peer: compiled for this machine, one thread for each core, all requests in one batch."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bench.peers.engine_process import EngineProcess
from bench.peers.venvs import FOLDER, find_prepared, make_venv

LLAMA_CPP = "llama-cpp"
"""Name of its venv."""
NEEDS = ("llama-cpp-python==0.3.36",)
WORKER = Path(__file__).parent / "llama_cpp_worker.py"
MAX_SEQUENCES, CONTEXT = 32, 128
"""Size of its KV cache: sequences, and tokens of each."""


def prepare_llama_cpp(folder: Path = FOLDER) -> Path:
    """The Python of its venv, which is made if it is not there."""
    return make_venv(folder / LLAMA_CPP, NEEDS)


def llama_cpp_peer(gguf: Path, name: str = "llama.cpp", folder: Path = FOLDER) -> EngineProcess:
    """llama.cpp with the model in this file."""
    python = find_prepared(folder / LLAMA_CPP, NEEDS)
    if python is None:
        raise RuntimeError(f"llama.cpp is not installed\n  fix: python -m bench.peers.install {LLAMA_CPP}")
    threads = len(os.sched_getaffinity(0))
    settings = {"path": str(gguf), "threads": threads, "max_sequences": MAX_SEQUENCES, "context": CONTEXT}
    environment = {"PATH": f"{python.parent}:{os.defpath}"}
    return EngineProcess(name, [str(python), str(WORKER), json.dumps(settings)], environment)
