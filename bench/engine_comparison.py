"""The engine against vLLM's CPU build, llama.cpp, OpenVINO GenAI and transformers' continuous batching.

All have the same weights and prompts, and take turns. In bf16 they are compared with all four; with 8-bit weights, with
llama.cpp (Q8_0), which has the 8-bit format that CPU users run most.

Workload: the published SmolLM2-135M at full size (30 layers of width 576), with random weights, 64 tokens in and 64
out for each request.
"""

from __future__ import annotations

import gc
import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.claims import Claim, Row, print_table
from bench.engine import EngineLoop
from bench.peers.gguf_model import BF16, Q8_0, write_gguf
from bench.peers.hf_peer import continuous_batching
from bench.peers.llama_cpp_peer import llama_cpp_peer
from bench.peers.model import RunResult, load_network, make_prompts, write_model
from bench.peers.openvino_peer import openvino_peer
from bench.peers.vllm_peer import vllm_peer

SIZES = (1, 8, 16, 32)
LENGTH = NEW = 64
WARM_UP_TOKENS = 8
OURS, OURS_8_BIT = "mstar", "mstar, 8 bits"
LLAMA_CPP, LLAMA_CPP_8_BIT = "llama.cpp", "llama.cpp, 8 bits"
COMPARISONS = {OURS: ("vLLM", LLAMA_CPP, "OpenVINO", "transformers"), OURS_8_BIT: (LLAMA_CPP_8_BIT,)}

Engine = Callable[[list[list[int]], int], RunResult]


def compare_engines() -> Claim:
    """Tokens a second of all requests together, 64 in and 64 out, all there at the start. One round, like `peers`."""
    rates: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = start_engines(Path(folder), stack)
        for size in SIZES:
            warm_up, prompts = (make_prompts(size, LENGTH, seed=size * 100 + turn) for turn in range(2))
            for run in engines.values():
                run(warm_up, WARM_UP_TOKENS)
            for name in random.sample([*engines], len(engines)):
                rates[name, size] = engines[name](prompts, NEW).tokens_per_s
            print_table([Row(f"{name}, {size} at once", "tokens/s", [rates[name, size]]) for name in engines])
    times = {
        other: {str(size): round(rates[ours, size] / rates[other, size], 3) for size in SIZES}
        for ours, others in COMPARISONS.items()
        for other in others
    }
    value = min(ratio for by_size in times.values() for ratio in by_size.values())
    claim = (
        "mstar writes at least as many tokens a second as vLLM, llama.cpp, OpenVINO and transformers, also in 8 bits"
    )
    return Claim(claim, value, 1.0, is_met=value >= 1, details={"times": times})


def start_engines(folder: Path, stack: ExitStack) -> dict[str, Engine]:
    """All engines with the same weights loaded, by name. They end with the stack."""
    write_model(folder)
    network = load_network(folder)
    files = {name: folder / f"{name}.gguf" for name in (BF16, Q8_0)}
    for name, path in files.items():
        write_gguf(network, path, name)
    ours, ours_8_bit = (EngineLoop(network, pages=2048, int8=int8) for int8 in (False, True))
    gc.freeze()
    return {
        OURS: ours.run,
        "vLLM": stack.enter_context(vllm_peer(folder)).run,
        LLAMA_CPP: stack.enter_context(llama_cpp_peer(files[BF16])).run,
        "OpenVINO": stack.enter_context(openvino_peer(folder)).run,
        "transformers": partial(continuous_batching, network),
        OURS_8_BIT: ours_8_bit.run,
        LLAMA_CPP_8_BIT: stack.enter_context(llama_cpp_peer(files[Q8_0])).run,
    }
