"""Qwen3-Omni: eight spoken answers at once against transformers' `generate`, alone, one after another and as a batch.

float32, greedy, one thread for all. The reference is the library itself. It gives its audio when all of it is made, so
its time to first audio is its whole duration. Three baselines are measured, and no figure is derived from another:

- alone: one request, and nothing else in the process. Eight requests at once on one thread compete with each other, so
  this is the hardest baseline for latency.
- queue: all eight arrive at once, and `generate` runs one after another. A request waits for those before it.
- batch: all eight in one call of `generate`. In its batch the reference can choose another token than alone; ours
  chooses the latter.

The gain is batching, a code predictor whose step is one native call, fused kernels, and, for the first audio, speaking
while the answer is written. Real-time factor is the median over requests of the seconds from arrival to the last
sample, per second of audio.

Workload: the published thinker has 48 layers of 2048 with 128 experts of 768, the talker 20 of 1024, the code predictor
five layers of 1024 (MLP 3072) with sixteen codes per frame, at 12.5 frames per second. Here all networks are 128 wide
with four experts; thinker and talker have three layers, the code predictor the published five layers and sixteen codes;
answers have 16 tokens and up to 32 frames, 2.6 s. The kernels do not depend on the width, but the overhead of calls
does, and with it the gain: `qwen3-omni` has its targets at width 512, half of the published talker and code predictor,
and shows width 128 beside it.
`speech-omni` has one round with the baselines alone and batch only, since a queue of eight takes half a minute.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.claims import Row
from bench.in_process import one_thread
from bench.speech.concurrent_requests import Run, Spoken, serve_concurrently
from mstar.models.qwen3_omni.qwen3_omni import Qwen3Omni
from mstar.requests import ChatRequest, Message, Sampling

WORDS, FRAMES, RATE, COUNT, ROUNDS = 16, 32, 24_000, 8, 3
ALONE_INDEX = 2
"""The request that runs alone: it has all frames, where others end sooner."""
WIDE = 512
SHAPE = {"width": 128, "groups": 16, "layers": 3, "deep": 5}
VOCODER = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "sliding_window": 72}
VOCODER |= {"intermediate_size": 384, "num_hidden_layers": 4, "upsample_rates": (8, 5, 4, 3), "decoder_dim": 192}


def chats() -> list[ChatRequest]:
    """Questions of different length."""
    inputs = [f"Question {number}: {'why ' * (number + 1)}so?" for number in range(COUNT)]
    return [ChatRequest((Message("user", (text,)),), Sampling(max_tokens=WORDS), audio_output=True) for text in inputs]


@dataclass(frozen=True)
class Contestants:
    """Both sides with the same weights."""

    network: Any
    prompts: Sequence[Any]
    run: Callable[[Sequence[ChatRequest]], Run]

    def generate(self, prompts: Sequence[Any]) -> Run:
        """These prompts as one batch of transformers."""
        import torch

        from tests.models.qwen3_omni import qwen3_omni_tiny as tiny

        longest = max(len(prompt) for prompt in prompts)
        given = torch.stack([torch.nn.functional.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
        mask = torch.stack([(torch.arange(longest) >= longest - len(prompt)).long() for prompt in prompts])
        begun = time.perf_counter()
        _, sounds = self.network.generate(
            input_ids=given,
            attention_mask=mask,
            thinker_max_new_tokens=WORDS + 1,
            thinker_eos_token_id=tiny.IDS["<|im_end|>"],
            talker_max_new_tokens=FRAMES + 1,
            talker_do_sample=False,
            thinker_do_sample=False,
        )
        end = time.perf_counter() - begun
        return Run([Spoken(end, end, sound.numel()) for sound in sounds])

    def generate_each(self) -> list[Spoken]:
        """All prompts, each in a call of transformers of its own, with its own duration."""
        return [self.generate([prompt]).requests[0] for prompt in self.prompts]


@contextmanager
def contestants(shape: dict[str, int]) -> Generator[Contestants]:
    """Both sides; ours is warm."""
    from transformers import Qwen3OmniMoeForConditionalGeneration

    from tests.models.qwen3_omni import qwen3_omni_tiny as tiny

    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved = tiny.save(Path(folder), **shape, **VOCODER)
        model = Qwen3Omni(saved, code_sampling=Sampling(max_tokens=FRAMES, repetition_penalty=1.05))
        network = Qwen3OmniMoeForConditionalGeneration.from_pretrained(saved).eval()
        prompts = [model.processor.process(chat)[0] for chat in chats()]
        run = stack.enter_context(serve_concurrently(model))
        run(chats())
        yield Contestants(network, prompts, run)


@dataclass(frozen=True)
class Round:
    """One run of each side, by turns."""

    served: Run
    served_alone: Run
    batch: Run
    alone: Run
    queue: Run | None
    """None in the short form."""


def measure_round(both: Contestants, *, has_queue: bool) -> Round:
    served, served_alone = both.run(chats()), both.run([chats()[ALONE_INDEX]])
    batch = both.generate(both.prompts)
    if not has_queue:
        return Round(served, served_alone, batch, both.generate([both.prompts[ALONE_INDEX]]), None)
    each = both.generate_each()
    ends = itertools.accumulate(one.end_s for one in each)
    queue = [Spoken(end, end, one.samples) for end, one in zip(ends, each, strict=True)]
    return Round(served, served_alone, batch, Run([each[ALONE_INDEX]]), Run(queue))


def comparison_rows(rounds: Sequence[Round], suffix: str = "") -> list[Row]:
    """Throughput, real-time factor and time to first audio of both sides, with the ratio to each baseline."""
    has_queue = rounds[0].queue is not None
    sides: dict[str, Callable[[Round], Any]] = {"transformers, one request alone": lambda one: one.alone}
    if has_queue:
        sides[f"transformers, queue of {COUNT}"] = lambda one: one.queue
    sides[f"transformers, batch of {COUNT}"] = lambda one: one.batch
    sides["served, one request alone"] = lambda one: one.served_alone
    sides[f"served, {COUNT} at once"] = lambda one: one.served
    metrics: dict[str, tuple[str, Callable[[Run], float], bool]] = {
        "audio per second": ("s", lambda run: run.samples / run.seconds / RATE, True),
        "real-time factor": ("s", lambda run: run.real_time_factor(RATE), False),
        "time to first audio": ("s", lambda run: run.first_s, False),
    }
    made: list[Row] = []
    for name, (unit, read, is_better_high) in metrics.items():
        measured = {side: [read(pick(one)) for one in rounds] for side, pick in sides.items()}
        for side, values in measured.items():
            made.append(Row(f"{name}, {side}{suffix}", unit, values))
            if not side.startswith("served"):
                continue
            for other, theirs in measured.items():
                if other.startswith("transformers") and ("at once" in side or "alone" in other):
                    pairs = zip(values, theirs, strict=True)
                    ratios = [own / one if is_better_high else one / own for own, one in pairs]
                    made.append(Row(f"  times better than {other}", "x", ratios))
    return made


def rows(*, is_long: bool = True) -> Sequence[Row]:
    """One round of the small network without a queue; if long, three rounds of the wide one with a queue as well."""
    with contestants(SHAPE) as both:
        made = comparison_rows([measure_round(both, has_queue=False)])
    if is_long:
        with contestants(SHAPE | {"width": WIDE}) as both:
            made += comparison_rows([measure_round(both, has_queue=True) for _ in range(ROUNDS)], f", width {WIDE}")
    return made
