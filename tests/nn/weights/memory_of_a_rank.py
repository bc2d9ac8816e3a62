"""Loads the shard of a rank from a checkpoint, or all of it, and prints the bytes read and the memory used as JSON.

python -m tests.nn.weights.memory_of_a_rank FOLDER RANK RANKS
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

from mstar.nn.lm.tensor_parallel import TensorParallel
from mstar.nn.ranks import Rank
from mstar.nn.weights.sources import Weights


def memory_bytes(name: str) -> int:
    """A size in the status of this process (`man proc_pid_status`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) * 1024


def load(folder: str, rank: int, ranks: int) -> dict[str, Any]:
    """Load, and use each parameter, as the first request does."""
    totals: list[int] = []

    def read() -> Any:
        return Weights(folder).network(progress=lambda _done, total: totals.append(total))

    read()  # imports what is imported once
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else the memory of that load would be used again, and not counted
    Path("/proc/self/clear_refs").write_text("5")  # the peak is reset
    before = memory_bytes("VmRSS")
    network = TensorParallel(Rank(rank, ranks)).load(read) if ranks > 1 else read()
    for parameter in network.parameters():
        parameter.sum()
    peak, now = memory_bytes("VmHWM") - before, memory_bytes("VmRSS") - before
    return {"read": totals[-1], "peak": peak, "loaded": now}


if __name__ == "__main__":
    json.dump(load(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
