"""What 8-bit integers are worth: one decode step of a language model in the shape of SmolLM2-135M, int8 against bf16.

Both are the flat decoder with the same attention; only the products with weights differ. Times are this thread's CPU
time, with one thread, the two interleaved.

Workload: the published SmolLM2-135M at full size (30 layers of width 576). Weights are random, which costs the same as
real ones.
"""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import torch
import transformers

from bench.claims import Claim, Row, print_table
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.decoder import Decoder
from mstar.requests import Sampling
from mstar.walk.batching import Layout

SIZES = (1, 8, 16, 32)
PROMPT = 64
REPEATS = 15
TARGET = 1.3


def network() -> Any:
    """A Llama in the shape of SmolLM2-135M."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).bfloat16()


class DecodeBatch:
    """Requests after prefill."""

    def __init__(self, decoder: Decoder, count: int) -> None:
        self.decoder, self.count = decoder, count
        self.caches = [decoder.new_cache(None) for _ in range(count)]
        self.step(PROMPT)

    def step(self, length: int = 1) -> float:
        """Run a number of tokens for each request; milliseconds of CPU time."""
        tokens = torch.randint(3, 49152, (length * self.count,))
        layout = Layout(self.count, (length,) * self.count)
        begun = time.thread_time()
        self.decoder.next_token(tokens, self.caches, [Sampling()] * self.count, layout)
        return (time.thread_time() - begun) * 1e3


def measure() -> list[tuple[Row, Row]]:
    """(bf16, int8) for each size of a batch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = network()
    decoders = [
        Decoder(copy.deepcopy(made), PagePool(512, 16), swap_bytes=0, is_deterministic=False, is_int8=is_int8)
        for is_int8 in (False, True)
    ]
    rows = []
    for size in SIZES:
        crowds = [DecodeBatch(decoder, size) for decoder in decoders]
        times = [[crowd.step() for crowd in crowds] for _ in range(REPEATS)]
        names = (f"step of {size}, bf16", f"step of {size}, int8")
        plain, whole = (Row(name, "ms", own) for name, own in zip(names, zip(*times, strict=True), strict=True))
        rows.append((plain, whole))
    torch.set_num_threads(threads)
    return rows


def step() -> Claim:
    """Is a step in int8 faster?"""
    rows = measure()
    print_table([row for pair in rows for row in pair])
    gains = {
        str(size): round(statistics.median(a / b for a, b in zip(plain.values, whole.values, strict=True)), 2)
        for size, (plain, whole) in zip(SIZES, rows, strict=True)
    }
    value = gains[str(SIZES[-1])]
    text = f"a decode step of a batch of {SIZES[-1]} is at least {TARGET} times as fast in int8 as in bf16"
    return Claim(text, value, TARGET, value >= TARGET, {"by batch": gains})
