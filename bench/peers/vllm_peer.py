"""vLLM's CPU build as a peer, with the settings that are fastest on a CPU."""

from __future__ import annotations

import ctypes.util
import json
import os
from pathlib import Path

from bench.peers.engine_process import EngineProcess
from bench.peers.vllm_venv import VENV, prepared

WORKER = Path(__file__).parent / "vllm_worker.py"
SETTINGS = {
    "dtype": "bfloat16",
    "max_model_len": 512,
    "max_num_seqs": 32,
    "kv_cache_memory_bytes": 1 << 28,
    "enable_prefix_caching": False,
    "skip_tokenizer_init": True,
    "disable_log_stats": True,
}


def vllm_peer(model: Path, venv: Path = VENV) -> EngineProcess:
    """vLLM with the model in this folder."""
    python = prepared(venv.absolute())
    settings = json.dumps(SETTINGS | {"model": str(model)})
    return EngineProcess("vLLM", [str(python), str(WORKER), settings], environment(venv.absolute()))


def find_allocator() -> str:
    """Name of the library of tcmalloc."""
    if allocator := ctypes.util.find_library("tcmalloc_minimal"):
        return allocator
    raise RuntimeError("vLLM is slower without tcmalloc\n  fix: apt-get install libtcmalloc-minimal4")


def environment(venv: Path) -> dict[str, str]:
    """vLLM in one process with a thread on every core, bound as it binds its own workers, and a fast allocator.

    Left to itself it keeps one core free for its scheduler, which on a small machine is half of it.
    """
    cores, allocator = sorted(os.sched_getaffinity(0)), find_allocator()
    return {
        "PATH": f"{venv / 'bin'}:/usr/bin:/bin",
        "HOME": str(venv),  # what it keeps goes there
        "TORCHINDUCTOR_CACHE_DIR": str(venv / "compiled"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(len(cores)),
        "LD_PRELOAD": f"{allocator}:{venv / 'lib/libiomp5.so'}",
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, cores))}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
    }
