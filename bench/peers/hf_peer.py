"""transformers as a peer, in this process: its `generate` for one request after another, and its continuous batching.

Both are used as their documentation says, with the settings that were fastest on a CPU. The first turn of each makes
memory that later ones find ready, so it is not measured.
"""

from __future__ import annotations

import time
from typing import Any

from bench.peers.model import RunResult

PAGE_SIZE = 32
PAGES = 256
MAX_BATCH_SIZE = 32


def generate_one_by_one(network: Any, prompts: list[list[int]], new: int) -> RunResult:
    """What a script without a server does."""
    import torch

    outputs: list[list[int]] = []
    begun = time.perf_counter()
    for prompt in prompts:
        made = network.generate(torch.tensor([prompt]), generation_config=_greedy(new))
        outputs.append(made[0, len(prompt) :].tolist())
    return RunResult(time.perf_counter() - begun, outputs)


def continuous_batching(network: Any, prompts: list[list[int]], new: int) -> RunResult:
    """All requests at once, over pages, joined in every step. Its memory stays with the network for the next turn."""
    from transformers import ContinuousBatchingConfig

    settings = ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        num_blocks=PAGES,
        max_batch_tokens=PAGES * PAGE_SIZE,
        max_requests_per_batch=MAX_BATCH_SIZE,
        allow_block_sharing=False,
    )
    with network.continuous_batching_context_manager(
        generation_config=_greedy(new), continuous_batching_config=settings, persistent_manager=True
    ) as batching:
        begun = time.perf_counter()
        names = batching.add_requests(prompts, max_new_tokens=new)
        outputs: dict[str, list[int]] = {}
        while len(outputs) < len(names):
            result = batching.get_result(timeout=60)
            if result is None or result.error is not None:
                raise RuntimeError(f"continuous batching gave {result}")
            outputs[result.request_id] = result.generated_tokens
        seconds = time.perf_counter() - begun
    return RunResult(seconds, [outputs[name] for name in names])


def _greedy(new: int) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(max_new_tokens=new, min_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)
