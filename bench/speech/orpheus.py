"""Orpheus: sixteen streams at once against transformers' generate and the published decoder, one by one.

A Llama of eight layers of 256 in bf16, as published, with the published codes and a small text vocabulary, and a tiny
SNAC in float32; greedy, on one thread for both. The gain is from batching the language model, from its fused kernels
(on processors without instructions for bf16 mostly from products in float), and from decoding each frame once instead
of four times.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.claims import Row
from bench.in_process import one_thread
from bench.speech.concurrent_requests import serve_concurrently
from mstar.models.orpheus.orpheus import Orpheus
from mstar.requests import Sampling, SpeechRequest

LLAMA = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4}
LENGTHS = [28 + 56 * number // 15 // 7 * 7 for number in range(16)]
"""How many codes each stream has."""
TIMED = LENGTHS[4::7]
"""Those of which the reference is timed; one by one, all of them would take a quarter of a minute."""


class RaggedOrpheus(Orpheus):
    """Speech of as many codes as its seed says."""

    async def route(self, request: SpeechRequest) -> None:
        await self.speak(request.text, "tara", replace(self.sampling, max_tokens=request.seed))


def run_sequential(network: Any, codec: Any) -> float:
    """Seconds for all streams, one after the other: those that are timed, and the others as long as their codes."""
    import torch

    from tests.models.orpheus import orpheus_tiny as tiny

    given = torch.tensor([tiny.prompt("tara", "Good morning.")])
    network.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=2, pad_token_id=0)  # warm
    begun = time.perf_counter()
    for length in TIMED:
        how = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False, "pad_token_id": 0}
        written = network.generate(given, attention_mask=torch.ones_like(given), **how)[0, given.shape[1] :]
        tiny.decode_windows(codec, (written % tiny.CODES).tolist())
    return (time.perf_counter() - begun) * sum(LENGTHS) / sum(TIMED)


def rows() -> Sequence[Row]:
    """Seconds for sixteen streams, the reference's and ours, and until half of ours are heard."""
    import torch
    from transformers import LlamaForCausalLM

    from tests.models.orpheus import orpheus_tiny as tiny

    small = tiny.SNAC_SMALL | {"encoder_dim": 8, "decoder_dim": 128}
    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved = tiny.save(Path(folder), LLAMA, small, torch.bfloat16)
        network, codec = LlamaForCausalLM.from_pretrained(saved[0], dtype="auto"), tiny.read_snac(saved[1])
        run = stack.enter_context(serve_concurrently(RaggedOrpheus(*saved, sampling=Sampling())))
        streams = [SpeechRequest("Good morning.", seed=length) for length in LENGTHS]
        run([SpeechRequest("Good morning.", seed=28)] * len(LENGTHS))  # warm
        ours = [run(streams)]
        theirs = run_sequential(network, codec)
        ours.append(run(streams))  # before and after, so that a change of the machine's mood is seen
    if any(samples != sum(length // 7 * 2048 for length in LENGTHS) for _, _, samples in ours):
        raise RuntimeError("a stream lacks sound")
    return [
        Row("transformers and snac, one by one", "s", [theirs]),
        Row("served, all at once", "s", [seconds for seconds, _, _ in ours]),
        Row("  until half are heard", "s", [first for _, first, _ in ours]),
        Row("  times as fast", "x", [theirs / seconds for seconds, _, _ in ours]),
    ]
