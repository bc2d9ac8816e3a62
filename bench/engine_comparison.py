"""The engine against vLLM's CPU build and transformers' continuous batching: the same weights and prompts, in turns.

Workload: the published SmolLM2-135M at full size (30 layers of width 576) in bf16, with random weights, 64 tokens
in and 64 out for each request.
"""

from __future__ import annotations

import gc
import tempfile
from functools import partial
from pathlib import Path

from bench.claims import Claim, Row, paired_ratio, print_table
from bench.engine import EngineLoop
from bench.peers.hf_peer import continuous_batching
from bench.peers.model import RunResult, load_network, make_prompts, write_model
from bench.peers.vllm_peer import VllmPeer

SIZES = (1, 8, 16, 32)
LENGTH = NEW = 64
ROUNDS = 3


def compare_engines() -> Claim:
    """Tokens a second of all requests together, 64 in and 64 out, all there at the start."""
    rates: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        write_model(model)
        served, library = EngineLoop(load_network(model), pages=2048), load_network(model)
        gc.freeze()
        with VllmPeer(model) as vllm:
            runs = {"mstar": served.run, "vLLM": vllm.run, "transformers": partial(continuous_batching, library)}
            for size in SIZES:
                for round_ in range(ROUNDS + 1):
                    prompts = make_prompts(size, LENGTH, seed=size * 100 + round_)
                    for name, run in runs.items():
                        turn: RunResult = run(prompts, NEW)
                        if round_:  # the first one warms
                            rates.setdefault((name, size), []).append(turn.tokens_per_s)
                print_table([Row(f"{who}, {size} at once", "tokens/s", rates[who, size]) for who in runs])
    times = {
        other: {str(size): round(paired_ratio(rates["mstar", size], rates[other, size]), 3) for size in SIZES}
        for other in ("vLLM", "transformers")
    }
    value = min(times["vLLM"].values())
    claim = "mstar writes at least as many tokens a second as vLLM, and more than transformers' continuous batching"
    is_ahead = min(times["transformers"].values()) > 1
    return Claim(claim, value, 1.0, is_met=value >= 1 and is_ahead, details={"times": times})
