"""`python -m bench.peers [--venv DIR]`: vLLM and transformers on the same weights and prompts, in turns, all warm.

Prints tokens a second for 1, 8, 16 and 32 requests that come at once, 64 tokens in and 64 out, with the load of the
machine at that moment: a figure from a busy machine says little. It does not measure mstar.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.claims import Row, print_table
from bench.peers.hf_peer import continuous_batching, generate_one_by_one
from bench.peers.model import RunResult, load_network, make_prompts, write_model
from bench.peers.vllm_peer import vllm_peer
from bench.peers.vllm_venv import VENV

SIZES = (1, 8, 16, 32)
LENGTH = NEW = 64
REPEATS = 3

Peer = Callable[[list[list[int]], int], RunResult]


def measure(peers: dict[str, Peer], size: int) -> list[Row]:
    """Every peer in turn, on prompts that are new in each round; the first round only warms."""
    rates: dict[str, list[float]] = {name: [] for name in peers}
    for repeat in range(REPEATS + 1):
        prompts = make_prompts(size, LENGTH, seed=size * 100 + repeat)
        for name, peer in peers.items():
            turn = peer(prompts, NEW)
            lengths = {len(output) for output in turn.outputs}
            if lengths != {NEW}:
                raise RuntimeError(f"{name} wrote {lengths} tokens, not {NEW}\n  fix: its settings in bench/peers")
            if repeat:
                rates[name].append(turn.tokens_per_s)
    return [Row(f"{name}, {size} at once", "tokens/s", values) for name, values in rates.items()]


def main(venv: Path) -> None:
    """Measure all of them."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        write_model(model)
        network = load_network(model)
        with vllm_peer(model, venv) as vllm:
            peers: dict[str, Peer] = {
                "vLLM": vllm.run,
                "transformers, continuous batching": partial(continuous_batching, network),
                # One after another, more of them only take longer.
                "transformers, one by one": lambda prompts, new: generate_one_by_one(network, prompts[:2], new),
            }
            for size in SIZES:
                print_table(measure(peers, size))
                print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--venv", type=Path, default=VENV, help="where vLLM is, or is to be installed")
    main(parser.parse_args().venv)
