"""Section `engine`: tokens per second of SmolLM2 in a walk, by mstar's own decoder and by vLLM, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from mstar.cli.gpu_report.records import Row
from mstar.cli.gpu_report.sections import SectionOptions
from mstar.errors import format_count
from mstar.requests import ChatRequest, Message, Sampling

MODEL = "smollm2"
CONCURRENCY = (1, 8, 32)
TOKENS = 32
ROUNDS = 3


def rows(options: SectionOptions) -> Iterator[Row]:
    """Measure each engine at each number of requests, in turns."""
    from mstar.frontend.actor import FrontendActor
    from mstar.launch.local_launcher import LocalLauncher
    from mstar.wire.messages import Peer

    worker = f'[workers.local]\ndevice = "{options.device}"\n'
    placements = {"own decoder": worker}
    if options.vllm_python:
        placements = {name: text + "memory = 0.4\n" for name, text in placements.items()}
        placements["vLLM"] = placements["own decoder"] + (
            f'python = "{options.vllm_python}"\n[components.lm]\nengine = "vllm"\n'
        )
    concurrency, rounds = ((1, 4), 1) if options.is_rehearsal else (CONCURRENCY, ROUNDS)
    rates: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        frontends: dict[str, Any] = {}
        for name, placement in placements.items():
            launcher = stack.enter_context(LocalLauncher({MODEL: MODEL}, {MODEL: placement}, standby=False))
            frontends[name] = FrontendActor(launcher.actor_loop, Peer("front", 0), launcher.conductors)
            launcher.add_frontend(frontends[name])
            _tokens_per_s(frontends[name], 2)
        for _ in range(rounds):
            for count in concurrency:
                for name, frontend in frontends.items():
                    rates.setdefault((name, count), []).append(_tokens_per_s(frontend, count))
    for (name, count), values in rates.items():
        values.sort()
        note = f"{values[0]:.1f} to {values[-1]:.1f} in {format_count(rounds, 'round')}"
        what = f"{name}, {format_count(count, 'request')}"
        yield Row(what=what, value=values[rounds // 2], unit="tokens/s", note=note)
    if not options.vllm_python:
        yield Row(what="vLLM", state="skipped", note="name the interpreter of an environment with --vllm-python")


def _tokens_per_s(frontend: Any, count: int) -> float:
    """Rate at which this number of requests writes at the same time, their prompts included."""
    started_at = time.perf_counter()
    streams = [
        frontend.open_stream(
            MODEL,
            ChatRequest(
                (Message("user", (f"Tell me a long story about the number {row}, with many details.",)),),
                Sampling(max_tokens=TOKENS),
            ),
        )
        for row in range(count)
    ]
    tokens = sum(1 for stream in streams for _ in stream)
    return tokens / (time.perf_counter() - started_at)
