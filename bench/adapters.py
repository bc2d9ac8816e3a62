"""What LoRA adapters cost: a decode step of eight requests with eight adapters, against the same step without any.

The requests with adapters, and those of the base model, are steps of one decoder in alternation. Times are this
thread's CPU time, with one thread. Before, the logits of one adapter are compared with those of transformers and merged
weights.

| row | adapters |
|---|---|
| attention, rank 8 | what `LoraConfig` of PEFT does by default for this family: q_proj and v_proj |
| all linear layers, rank 16 | the most that is common |

Workload: the published SmolLM2-135M at full size (30 layers of width 576) in float32, as it is served. Weights are
random, which costs the same as real ones. Adapters are 0.3 % and 3.6 % of its size; of larger networks they are less.
"""

from __future__ import annotations

import copy
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.claims import Claim, Row, print_table
from bench.int8 import network
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.adapters.peft_folder import CONFIG_FILE, WEIGHTS_FILE, open_adapter
from mstar.nn.lm.decoder import Decoder
from mstar.requests import Adapter, Sampling
from mstar.walk.batching import Layout

REQUESTS = 8
PROMPT = 32
REPEATS = 15
TARGET = 1.10
TOLERANCE = 1e-4
"""Of logits, relative to the largest one."""
ATTENTION = ("q_proj", "v_proj")
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(folder: Path, base: Any, targets: Sequence[str], rank: int, seed: int) -> tuple[Adapter, Any]:
    """An adapter with random weights, and its update of each module."""
    generator, tensors, updates = torch.Generator().manual_seed(seed), dict[str, Tensor](), dict[str, Tensor]()
    for name, module in base.named_modules():
        if name.rpartition(".")[2] in targets:
            first = torch.randn(rank, module.in_features, generator=generator) * 0.02
            second = torch.randn(module.out_features, rank, generator=generator) * 0.02
            updates[name] = second @ first * 2
            halves = {"A": first, "B": second}.items()
            tensors |= {f"base_model.model.{name}.lora_{half}.weight": tensor for half, tensor in halves}
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS_FILE)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": [*targets]}
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    return open_adapter(folder.name, folder), updates


class DecodeBatch:
    """Requests after prefill, each with an adapter or None."""

    def __init__(self, decoder: Decoder, adapters: Sequence[Adapter | None]) -> None:
        self._decoder = decoder
        self._params = [Sampling(adapter=adapter) for adapter in adapters]
        self._caches = [decoder.new_cache(None) for _ in adapters]
        self._generator = torch.Generator().manual_seed(0)
        self.step(PROMPT)

    def step(self, length: int = 1) -> float:
        """Run a number of tokens for each request; milliseconds of CPU time."""
        count = len(self._caches)
        tokens = torch.randint(3, 49152, (length * count,), generator=self._generator)
        layout = Layout(count, (length,) * count)
        begun = time.thread_time()
        self._decoder.next_token(tokens, self._caches, self._params, layout)
        return (time.thread_time() - begun) * 1e3


def check_equal(base: Any, decoder: Decoder, adapter: Adapter, updates: dict[str, Tensor]) -> float:
    """Largest difference of logits from those of transformers with merged weights, relative to the largest logit."""
    merged = copy.deepcopy(base)
    for name, update in updates.items():
        merged.get_submodule(name).weight.data += update
    tokens = torch.randint(3, 49152, (PROMPT,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = merged(tokens[None]).logits[:, -1]
    params = [Sampling(adapter=adapter)]
    logits = decoder.next_token(tokens, [decoder.new_cache(None)], params, Layout(1, (PROMPT,)))[1]
    difference = float((logits - expected).abs().max() / expected.abs().max())
    if not difference <= TOLERANCE:
        raise AssertionError(f"logits differ from merged weights by {difference:.1e}, limit {TOLERANCE:.0e}")
    return difference


def load(decoder: Decoder, adapter: Adapter) -> float:
    """Load an adapter; milliseconds of CPU time, in which the requests of the batch wait."""
    begun = time.thread_time()
    decoder.adapters.get(adapter)
    return (time.thread_time() - begun) * 1e3


def step() -> Claim:
    """What does a step with eight adapters cost?"""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    base = network().float()
    decoder = Decoder(copy.deepcopy(base), PagePool(512, 16), swap_bytes=0, is_deterministic=False)
    with tempfile.TemporaryDirectory() as directory:
        kinds = {"attention, rank 8": (ATTENTION, 8), "all linear layers, rank 16": (ALL_LINEAR, 16)}
        made = {
            name: [make_adapter(Path(directory) / f"{rank}-{n}", base, targets, rank, n) for n in range(REQUESTS)]
            for name, (targets, rank) in kinds.items()
        }
        difference = check_equal(base, decoder, *made["all linear layers, rank 16"][0])
        loads = [load(decoder, adapter) for adapter, _ in made["all linear layers, rank 16"][1:]]
        batches = {"base": DecodeBatch(decoder, [None] * REQUESTS)}
        batches |= {name: DecodeBatch(decoder, [adapter for adapter, _ in own]) for name, own in made.items()}
    times = [[batch.step() for batch in batches.values()] for _ in range(REPEATS)]
    torch.set_num_threads(threads)
    plain, *others = rows = [Row(name, "ms", own) for name, own in zip(batches, zip(*times, strict=True), strict=True)]
    print_table([*rows, Row("load of rank 16", "ms", loads)])
    ratios = {
        row.name: round(statistics.median(a / b for a, b in zip(row.values, plain.values, strict=True)), 3)
        for row in others
    }
    value = ratios["attention, rank 8"]
    text = f"a decode step of {REQUESTS} requests takes at most {TARGET:.2f} times as long with as many adapters"
    details = {"times as long": ratios, "difference of logits": difference}
    return Claim(text, value, TARGET, value <= TARGET, details)
