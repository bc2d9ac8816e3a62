"""Stable Diffusion 3: eight staggered image requests against two bare loops and diffusers.

- The bare loop has all eight from the start, as one batch: the same transformer, one forward pass a step for all
  branches, one decode of all at the end, and nothing else. Ours arrive while others run and join between their steps,
  all within a quarter of that time.
- The bare loop as they come is the fair comparison: its requests arrive at the same intervals, join between steps and
  are decoded one by one. What ours takes longer is the cost of the runtime.
- Diffusers' pipeline runs one request after another. Two of eight are timed in each round, different ones each time.

Ours and the bare loops have read the texts before. All use guidance; float32, one thread. Steps are counted over all
requests, from the arrival of the first to the last image. Against the bare loops there is nothing to gain. Against
diffusers the gain is batching, which pays on a CPU while images are so small that the fixed cost of a forward pass
counts, and a little removed work: texts are read once.

Workload: the published SD3 medium has 24 layers of 1536, 1024 x 1024 pixels in 4096 positions, and 28 steps. Here the
transformer has four layers of 128, 256 positions and ten steps: a step takes some tens of milliseconds instead of
seconds, so the cost of the runtime, which does not depend on the size of the network, weighs far more than there.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.claims import Row
from bench.in_process import NAME, one_thread, serve_in_process, time_wall
from mstar.frontend.actor import FrontendActor
from mstar.models.diffusion.sd3 import StableDiffusion3
from mstar.requests import ImageRequest

COUNT, STEPS, ROUNDS, SIDE, LENGTH, GUIDANCE = 8, 10, 3, 64, 16, 5.0
SHAPE = {"num_layers": 4, "attention_head_dim": 32, "num_attention_heads": 4, "sample_size": SIDE // 2}


def drawings(steps: int, first: int) -> list[ImageRequest]:
    """Eight, each with a text of its own, and seeds from the first one on."""
    words = ("red", "blue", "green", "slowly", "runs", "jumps", "dog", "moon")
    seeds = range(first, first + COUNT)
    return [
        ImageRequest(f"a {word} cat", SIDE, SIDE, steps, GUIDANCE, seed=seed)
        for word, seed in zip(words, seeds, strict=True)
    ]


def encode_prompts(pipeline: Any, requests: Sequence[ImageRequest]) -> list[Any]:
    """What the networks are embeddings of eight texts, behind what they are embeddings of the empty one as often."""
    texts = [*[""] * COUNT, *(one.prompt for one in requests)]
    how = {"do_classifier_free_guidance": False, "max_sequence_length": LENGTH}
    return [*pipeline.encode_prompt(texts, None, None, **how)[::2]]


def bare_loop(pipeline: Any, requests: Sequence[ImageRequest], embeddings: Sequence[Any]) -> Any:
    """All of them as one batch in a plain loop: the pictures, [8, 3, height, width]."""
    import torch

    seeds = [torch.Generator().manual_seed(one.seed) for one in requests]
    x = torch.cat([torch.randn((1, 4, SIDE // 2, SIDE // 2), generator=seed) for seed in seeds])
    pipeline.scheduler.set_timesteps(requests[0].steps)
    for at in pipeline.scheduler.timesteps:
        velocity = pipeline.transformer(torch.cat([x, x]), *embeddings, at.expand(2 * COUNT)).sample
        away, towards = velocity.chunk(2)
        x = pipeline.scheduler.step(away + GUIDANCE * (towards - away), at, x, return_dict=False)[0]
    config = pipeline.vae.config
    return pipeline.vae.decode(x / config.scaling_factor + config.shift_factor).sample


def staggered_loop(
    pipeline: Any, requests: Sequence[ImageRequest], embeddings: Sequence[Any], apart_s: float
) -> list[Any]:
    """The bare loop with requests that join between its steps at a fixed interval; decoded one by one."""
    import torch

    seeds, started = [torch.Generator().manual_seed(one.seed) for one in requests], time.perf_counter()
    x = [torch.randn((1, 4, SIDE // 2, SIDE // 2), generator=seed) for seed in seeds]
    pipeline.scheduler.set_timesteps(requests[0].steps)
    steps, sigmas, done = pipeline.scheduler.timesteps, pipeline.scheduler.sigmas, [0] * COUNT
    shown: dict[int, Any] = {}
    while len(shown) < COUNT:
        come = min(COUNT, 1 + int((time.perf_counter() - started) / apart_s))
        rows = [row for row in range(come) if row not in shown]
        if not rows:
            time.sleep(apart_s / 10)
            continue
        now = torch.cat([x[row] for row in rows])
        both = [one[[*rows, *(COUNT + row for row in rows)]] for one in embeddings]
        at = torch.stack([steps[done[row]] for row in rows]).repeat(2)
        away, towards = pipeline.transformer(torch.cat([now, now]), *both, at).sample.chunk(2)
        for place, row in enumerate(rows):
            velocity = (away + GUIDANCE * (towards - away))[place : place + 1]
            x[row] = x[row] + (sigmas[done[row] + 1] - sigmas[done[row]]) * velocity
            done[row] += 1
            if done[row] == requests[row].steps:
                config = pipeline.vae.config
                shown[row] = pipeline.vae.decode(x[row] / config.scaling_factor + config.shift_factor).sample
    return [shown[row] for row in range(COUNT)]


def run_sequential(pipeline: Any, requests: Sequence[ImageRequest]) -> list[Any]:
    """Diffusers' pipeline for each: pictures as bytes."""
    from tests.models.diffusion import diffusion_tiny as tiny

    return [tiny.reference_image(pipeline, one, LENGTH)[1] for one in requests]


def serve_staggered(front_end: FrontendActor, requests: Sequence[ImageRequest], apart_s: float) -> list[Any]:
    """Images of requests that arrive at a fixed interval."""
    streams = list[Any]()
    for one in requests:
        streams.append(front_end.open_stream(NAME, one))
        time.sleep(apart_s)
    return [[emission.value for emission in stream][-1] for stream in streams]


def rows() -> Sequence[Row]:
    """Steps a second of all requests together."""
    import numpy as np

    from tests.models.diffusion import diffusion_tiny as tiny

    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        pipeline, model = tiny.save_sd3(Path(folder), **SHAPE), StableDiffusion3(folder)
        model.t5.MAX_TOKENS = LENGTH
        run = functools.partial(serve_staggered, stack.enter_context(serve_in_process(model)))
        payload = encode_prompts(pipeline, drawings(1, 0))
        bare_loop(pipeline, drawings(1, 0), payload)
        run(drawings(1, 0), 0.0)
        ours, loop, coming, theirs = (list[float]() for _ in range(4))
        for number in range(ROUNDS):  # side by side, so that a change of the machine's mood meets all
            requests = drawings(STEPS, COUNT * number)
            seconds, wanted = time_wall(bare_loop, pipeline, requests, payload)
            loop.append(seconds)
            apart_s = seconds / COUNT / 4
            seconds, shown = time_wall(run, requests, apart_s)
            ours.append(seconds)
            seconds, joined = time_wall(staggered_loop, pipeline, requests, payload, apart_s)
            coming.append(seconds)
            some = requests[number :: COUNT // 2]  # they stand for their neighbours
            theirs.append(time_wall(run_sequential, pipeline, some)[0] / len(some) * COUNT)
            pixels = ((wanted / 2 + 0.5).clamp(0, 1) * 255).permute(0, 2, 3, 1).numpy()
            if np.abs(np.stack(shown) - pixels).max() > 0.6:
                raise RuntimeError("what was served is not what the bare loop makes")
            if np.abs(np.concatenate(joined) - wanted.numpy()).max() > 1e-3:
                raise RuntimeError("whom it joins changes what the bare loop makes")
    work = COUNT * STEPS
    return [
        Row("steps, one by one in diffusers", "/s", [work / seconds for seconds in theirs]),
        Row("steps, all at once in a bare loop", "/s", [work / seconds for seconds in loop]),
        Row("steps, in a bare loop as they come", "/s", [work / seconds for seconds in coming]),
        Row("steps, served as they come", "/s", [work / seconds for seconds in ours]),
        Row("  of the bare loop", "x", [one / other for one, other in zip(loop, ours, strict=True)]),
        Row("  of the bare loop as they come", "x", [one / other for one, other in zip(coming, ours, strict=True)]),
        Row("  times diffusers", "x", [one / other for one, other in zip(theirs, ours, strict=True)]),
    ]
