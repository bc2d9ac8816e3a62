"""Orpheus: sixteen streams at once against transformers' `generate` with snac's decoder, one by one and as a batch.

bf16 as published, greedy, one thread for both sides. The references are the libraries themselves, with the windows of
the published decoder. The publisher serves with vLLM, with which `engine-peers` compares our engine.
The gain over one by one is batching the language model, its fused kernels (on processors without bf16 instructions
mostly products in float), and decoding each frame once instead of four times. Over their batch only the latter two are
left, and that a batch of `generate` runs until its longest stream ends and gives no audio before.

Workload: the published language model is a Llama of 28 layers of 3072 (MLP 8192) with 28,672 codes in a vocabulary of
156,940; SNAC has 24 kHz and 84 codes per second of audio. Here it has eight layers of 256 (MLP 768) with the same codes
and a small text vocabulary, and a tiny SNAC in float32. Streams have 56 to 112 codes, 0.7 to 1.3 s. The kernels do not
depend on the width, but the overhead of calls does: `orpheus` shows width 1024 (MLP 2730, four layers), a third of the
published width, beside it, without a target. `speech-omni` times four of the sixteen references and scales them
by their codes; `orpheus` times all sixteen and prints how far the scaled figure is off.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.claims import Row
from bench.in_process import one_thread
from bench.speech.concurrent_requests import Run, serve_concurrently
from mstar.models.orpheus.orpheus import Orpheus
from mstar.requests import Sampling, SpeechRequest

LLAMA = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4}
WIDE_LLAMA = {"hidden_size": 1024, "intermediate_size": 2730, "num_hidden_layers": 4, "num_attention_heads": 16}
LENGTHS = [56 + 56 * number // 15 // 7 * 7 for number in range(16)]
"""Codes of each stream."""
TIMED = LENGTHS[::5]
"""Streams whose reference is timed in the short form."""
ROUNDS = 2


class RaggedOrpheus(Orpheus):
    """Speech with as many codes as its seed says."""

    async def route(self, request: SpeechRequest) -> None:
        await self.speak(request.text, "tara", replace(self.sampling, max_tokens=request.seed))


class Reference:
    """transformers' language model and snac."""

    def __init__(self, saved: tuple[str, str]) -> None:
        import torch
        from transformers import LlamaForCausalLM

        from tests.models.orpheus import orpheus_tiny as tiny

        self.network, self.codec = LlamaForCausalLM.from_pretrained(saved[0], dtype="auto"), tiny.read_snac(saved[1])
        self.prompt = torch.tensor([tiny.prompt("tara", "Good morning.")])

    def speak(self, lengths: Sequence[int]) -> float:
        """Seconds for streams of these lengths as one batch, which runs until the longest ends."""
        import torch

        from tests.models.orpheus import orpheus_tiny as tiny

        begun, given = time.perf_counter(), self.prompt.expand(len(lengths), -1)
        how = {"max_new_tokens": max(lengths), "min_new_tokens": max(lengths), "do_sample": False, "pad_token_id": 0}
        written = self.network.generate(given, attention_mask=torch.ones_like(given), **how)[:, given.shape[1] :]
        for codes, length in zip(written, lengths, strict=True):
            tiny.decode_windows(self.codec, (codes[:length] % tiny.CODES).tolist())
        return time.perf_counter() - begun


@dataclass(frozen=True)
class Contestants:
    """Both sides with the same weights."""

    reference: Reference
    run: Callable[[], Run]
    """All streams, served at once."""


@contextmanager
def contestants(llama: dict[str, int]) -> Generator[Contestants]:
    """Both sides, warm."""
    import torch

    from tests.models.orpheus import orpheus_tiny as tiny

    small = tiny.SNAC_SMALL | {"encoder_dim": 8, "decoder_dim": 128}
    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved = tiny.save(Path(folder), llama, small, torch.bfloat16)
        reference = Reference(saved)
        run = stack.enter_context(serve_concurrently(RaggedOrpheus(*saved, sampling=Sampling())))
        reference.speak([28])
        run([SpeechRequest("Good morning.", seed=28)] * len(LENGTHS))
        yield Contestants(reference, lambda: run([SpeechRequest("Good morning.", seed=length) for length in LENGTHS]))


def served(both: Contestants) -> Run:
    run = both.run()
    if run.samples != sum(length // 7 * 2048 for length in LENGTHS):
        raise RuntimeError("a stream lacks audio")
    return run


def compare(both: Contestants, rounds: int, timed: Sequence[int], suffix: str = "") -> list[Row]:
    """Rows of rounds of ours, their batch, and the timed streams one by one, by turns."""
    ours, batches, singles = list[Run](), list[float](), list[dict[int, float]]()
    for _ in range(rounds):
        ours.append(served(both))
        batches.append(both.reference.speak(LENGTHS))
        singles.append({number: both.reference.speak([length]) for number, length in enumerate(timed)})
    scale = sum(LENGTHS) / sum(timed)
    queues = [sum(seconds.values()) * scale for seconds in singles]
    measured = "one by one" if len(timed) == len(LENGTHS) else f"one by one, scaled from {len(timed)} of {len(LENGTHS)}"
    rows = [
        Row(f"transformers and snac, {measured}{suffix}", "s", queues),
        Row(f"transformers and snac, their batch{suffix}", "s", batches),
        Row(f"served, all at once{suffix}", "s", [one.seconds for one in ours]),
        Row("  median time to first audio", "s", [one.first_s for one in ours]),
        Row("  times one by one", "x", [one / own.seconds for one, own in zip(queues, ours, strict=True)]),
        Row("  times their batch", "x", [one / own.seconds for one, own in zip(batches, ours, strict=True)]),
    ]
    if len(timed) == len(LENGTHS):
        some = range(0, len(LENGTHS), 5)
        scaled = [sum(one[number] for number in some) * sum(LENGTHS) / sum(TIMED) for one in singles]
        errors = [100 * (one / queue - 1) for one, queue in zip(scaled, queues, strict=True)]
        rows.append(Row("  one by one, scaled from 4 of 16: error", "%", errors))
    return rows


def rows(*, is_long: bool = True) -> Sequence[Row]:
    """All references timed and a wider network, or, if short, four references and the small network only."""
    with contestants(LLAMA) as both:
        made = compare(both, ROUNDS if is_long else 1, LENGTHS if is_long else TIMED)
    if is_long:
        with contestants(WIDE_LLAMA) as both:
            made += compare(both, 1, TIMED, ", width 1024")
    return made
