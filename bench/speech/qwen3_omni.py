"""Qwen3-Omni: eight spoken answers at once against transformers' generate, one by one and as a batch of its own.

Networks of two layers of 128 with the published sixteen codes a frame and five layers of the code predictor; float32,
greedy, one thread for all. The gain is from batching, from a code predictor of which a step is one call, from fused
kernels, and, for the first sound, from speaking while the answer is written. One request stands for
all that are run one by one. In its batches the reference may choose another token than alone; ours chooses the latter.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.claims import Row
from bench.in_process import one_thread
from bench.speech.concurrent_requests import serve_concurrently
from mstar.models.qwen3_omni.qwen3_omni import Qwen3Omni
from mstar.requests import ChatRequest, Message, Sampling

WORDS, FRAMES, RATE, COUNT = 16, 20, 24_000, 8
SEQUENTIAL_INDEX = 2
"""Which of the requests transformers is given by itself: it has all frames, where others end sooner."""
SHAPE = {"width": 128, "groups": 16, "layers": 2, "deep": 5}
VOCODER = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "sliding_window": 72}
VOCODER |= {"intermediate_size": 384, "num_hidden_layers": 4, "upsample_rates": (8, 5, 4, 3), "decoder_dim": 192}


def chats() -> list[ChatRequest]:
    """Questions of different length."""
    inputs = [f"Question {number}: {'why ' * (number + 1)}so?" for number in range(COUNT)]
    return [ChatRequest((Message("user", (text,)),), Sampling(max_tokens=WORDS), audio_output=True) for text in inputs]


def generate_batch(network: Any, prompts: Sequence[Any]) -> tuple[float, int]:
    """Seconds that transformers takes for these prompts as one batch, and how many samples it makes."""
    import torch

    from tests.models.qwen3_omni import qwen3_omni_tiny as tiny

    longest = max(len(prompt) for prompt in prompts)
    given = torch.stack([torch.nn.functional.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
    mask = torch.stack([(torch.arange(longest) >= longest - len(prompt)).long() for prompt in prompts])
    begun = time.perf_counter()
    _, sounds = network.generate(
        input_ids=given,
        attention_mask=mask,
        thinker_max_new_tokens=WORDS + 1,
        thinker_eos_token_id=tiny.IDS["<|im_end|>"],
        talker_max_new_tokens=FRAMES + 1,
        talker_do_sample=False,
        thinker_do_sample=False,
    )
    return time.perf_counter() - begun, sum(sound.numel() for sound in sounds)


def rows() -> Sequence[Row]:
    """Throughput, real-time factor and first sound of ours and of the reference."""
    from transformers import Qwen3OmniMoeForConditionalGeneration

    from tests.models.qwen3_omni import qwen3_omni_tiny as tiny

    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved = tiny.save(Path(folder), **SHAPE, **VOCODER)
        model = Qwen3Omni(saved, code_sampling=Sampling(max_tokens=FRAMES, repetition_penalty=1.05))
        network = Qwen3OmniMoeForConditionalGeneration.from_pretrained(saved).eval()
        prompts = [model.processor.process(chat)[0] for chat in chats()]
        run = stack.enter_context(serve_concurrently(model))
        run(chats())  # warm
        ours, batches = [run(chats())], [generate_batch(network, prompts)]
        single, samples = generate_batch(network, [prompts[SEQUENTIAL_INDEX]])
        ours.append(run(chats()))  # before and after, so that a change of the machine's mood is seen
        batches.append(generate_batch(network, prompts))
    rates = [one[2] / one[0] / RATE for one in ours]
    return [
        Row("sound a second, one by one", "s", [samples / single / RATE]),
        Row("sound a second, their batch", "s", [count / seconds / RATE for seconds, count in batches]),
        Row("sound a second, served", "s", rates),
        Row("  times one by one", "x", [rate * single * RATE / samples for rate in rates]),
        Row(
            "  times their batch",
            "x",
            [rate * seconds * RATE / count for rate, (seconds, count) in zip(rates, batches, strict=True)],
        ),
        Row("seconds for a second, eight one by one", "s", [single * (COUNT + 1) / 2 * RATE / samples]),
        Row("seconds for a second, served", "s", [seconds * RATE / samples for seconds, _, _ in ours]),
        Row("first sound, one by one", "s", [single * COUNT / 2]),
        Row("first sound, one alone", "s", [single]),
        Row("first sound, served", "s", [first for _, first, _ in ours]),
    ]
