"""vLLM's CPU build as a peer: a process in its own venv that stays loaded and takes turns with what else is measured.

It does nothing between turns. It is not vLLM's HTTP server: prompts and tokens go over a pipe, so that what is
compared is engines.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import select
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.peers.model import RunResult
from bench.peers.vllm_venv import VENV, prepared

WORKER = Path(__file__).parent / "vllm_worker.py"
LOAD_TIMEOUT_S = 900
TURN_TIMEOUT_S = 600
END_TIMEOUT_S = 20
SETTINGS = {
    "dtype": "bfloat16",
    "max_model_len": 512,
    "max_num_seqs": 32,
    "kv_cache_memory_bytes": 1 << 28,
    "enable_prefix_caching": False,
    "skip_tokenizer_init": True,
    "disable_log_stats": True,
}


class VllmPeer:
    """vLLM with one model loaded. Use it in a `with`: the process ends with the block, however that ends."""

    def __init__(self, model: Path, venv: Path = VENV) -> None:
        self._environment = environment(venv.absolute())
        self._python = prepared(venv.absolute())
        self._settings = json.dumps(SETTINGS | {"model": str(model)})

    def __enter__(self) -> VllmPeer:
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [str(self._python), str(WORKER), self._settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
            text=True,
            process_group=0,  # so that what vLLM starts ends with it
        )
        try:
            self._answer(LOAD_TIMEOUT_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, prompts: list[list[int]], new: int) -> RunResult:
        """Give it all prompts at once; greedy, `new` tokens for each."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either, which is reported
            print(json.dumps({"prompts": prompts, "new": new}), file=self._process.stdin, flush=True)
        return RunResult(**self._answer(TURN_TIMEOUT_S))

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if readable else ""
        if line:
            return json.loads(line)
        self._log.seek(0)
        inputs = "\n    ".join(self._log.read().splitlines()[-30:])
        what = "ended" if readable else f"did not answer for {timeout_s} s"
        raise RuntimeError(f"vLLM {what}. The last it said:\n    {inputs}\n  fix: what its message asks for")

    def _end(self) -> None:
        """Close its input, upon which it ends by itself; kill whatever is left of its group."""
        try:
            self._process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f"vLLM did not end within {END_TIMEOUT_S} s and is killed")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


def environment(venv: Path) -> dict[str, str]:
    """vLLM in one process with a thread on every core, bound as it binds its own workers, and a fast allocator.

    Left to itself it keeps one core free for its scheduler, which on a small machine is half of it.
    """
    cores = sorted(os.sched_getaffinity(0))
    allocator = ctypes.util.find_library("tcmalloc_minimal")
    if allocator is None:
        raise RuntimeError("vLLM is slower without tcmalloc\n  fix: apt-get install libtcmalloc-minimal4")
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
