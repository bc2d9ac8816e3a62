"""Qwen3-TTS: eight requests at once against a plain loop over the same networks, one by one.

float32, greedy, one thread for both. The baseline is our own networks in a loop without a runtime, which decodes its
audio once, at its end: the gain is from batching, less what streaming costs. It is not the published code: qwen-tts is
a package, but requires an older transformers than this repository. `tests/models/qwen3_tts/test_qwen3_tts.py` checks
the networks against outputs of qwen-tts. No target.

Workload: the published talker has 20 layers of 1024 and the code predictor five of 1024, with sixteen codes per frame,
12.5 frames per second. Here all are tiny, with the published sixteen codes; requests have 18 to 30 frames, up to 2.4 s.
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
from bench.speech.concurrent_requests import Run, serve_concurrently
from mstar.models.qwen3_tts.qwen3_tts import Qwen3Tts
from mstar.requests import Sampling, SpeechRequest

LENGTHS = (18, 20, 22, 24, 24, 26, 28, 30)
"""How many frames each request has."""
ROUNDS = 2


class RaggedQwen3Tts(Qwen3Tts):
    """Speech of as many frames as its seed says."""

    async def route(self, request: SpeechRequest) -> None:
        await self.speak(request, replace(self.sampling, max_tokens=request.seed))


def run_sequential(model: Any, requests: Sequence[SpeechRequest]) -> float:
    """Seconds for all requests, one after the other."""
    import torch

    begun = time.perf_counter()
    for request in requests:
        given, _, _, pad, inputs = model.talker.prompt(request)
        kv, frames = model.talker.kv(), list[Any]()
        code, thought, inputs = model.talker.first_code(given, inputs, kv, model.sampling)
        for step in range(request.seed):
            frame, received = model.predictor.predict_frame(code, thought, pad, model.sampling, step)
            frames.append(frame)
            code, thought, inputs = model.talker.first_code(received, inputs, kv, model.sampling)
        model.codec.network(torch.stack(frames).T[None])
        kv.free()
    return time.perf_counter() - begun


def rows() -> Sequence[Row]:
    """Seconds for eight requests, of the plain loop and ours, and until half of ours are heard."""
    from tests.models.qwen3_tts import qwen3_tts_tiny as tiny

    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        model = RaggedQwen3Tts(tiny.save(Path(folder)), sampling=Sampling(repetition_penalty=1.05))
        requests = [SpeechRequest(f"w20 w21 w{30 + length}", "vivian", seed=length) for length in LENGTHS]
        run = stack.enter_context(serve_concurrently(model))
        run(requests)
        theirs, ours = list[float](), list[Run]()
        for _ in range(ROUNDS):
            ours.append(run(requests))
            theirs.append(run_sequential(model, requests))
    return [
        Row("a plain loop, one by one", "s", theirs),
        Row("served, all at once", "s", [one.seconds for one in ours]),
        Row("  median time to first audio", "s", [one.first_s for one in ours]),
        Row("  times as fast", "x", [one / own.seconds for one, own in zip(theirs, ours, strict=True)]),
    ]
