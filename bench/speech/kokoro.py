"""Kokoro-82M with its real weights: a text as it is served, sentence by sentence, against the library.

The library says phrase after phrase, and its caller hears them when all are said. One thread for both. They compute the
same, so the times should be alike; the gain is that the first sentence is heard while the second is made. Needs the
weights that scripts/fetch-kokoro fetches.

Workload: the published model with its real weights, and two sentences, as in one turn of a conversation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.claims import Row
from bench.in_process import one_thread
from bench.speech.concurrent_requests import serve_concurrently
from mstar.models.kokoro.checkpoint import DEFAULT_WEIGHTS
from mstar.models.kokoro.kokoro import SAMPLE_RATE_HZ, Kokoro
from mstar.models.kokoro.voice_mix import VoiceMix
from mstar.requests import SpeechRequest

SPEECH = SpeechRequest("Good morning. It is nice to see you here again.", "af_heart")


def rows() -> Sequence[Row]:
    """Seconds for two sentences, of the library and ours, and until ours are heard."""
    import pytest
    import torch

    from tests.models.kokoro import kokoro_tiny as tiny

    folder, model = Path(DEFAULT_WEIGHTS).expanduser(), Kokoro()
    with pytest.MonkeyPatch.context() as patched, one_thread(), ExitStack() as stack:
        library = tiny.library(folder, patched)
        run = stack.enter_context(serve_concurrently(model))
        run([SPEECH])
        ours = run([SPEECH])
        begun, spoken = time.perf_counter(), 0
        for phonemes in model.processor.phonemes(SPEECH.text, VoiceMix.parse(SPEECH.voice)):
            style = model.checkpoint.voice_style(SPEECH.voice)[len(phonemes) - 1]
            torch.manual_seed(0)
            spoken += len(library(phonemes, style[None], SPEECH.speed))
        theirs = time.perf_counter() - begun
    if ours.samples != spoken:
        raise RuntimeError(f"{ours.samples} samples were heard, and the library says {spoken}")
    return [
        Row("the library, phrase after phrase", "s", [theirs]),
        Row("served", "s", [ours.seconds]),
        Row("  until it is heard", "s", [ours.first_s]),
        Row("  seconds of sound", "s", [ours.samples / SAMPLE_RATE_HZ]),
    ]
