"""Whisper tiny.en with a long recording: chunks side by side, stitched, against one pass from beginning to end.

The pass is transformers' own: its `generate` goes through the recording window after window, each beginning where the
last words of the one before ended. Real weights, float32, greedy, one thread for both. Seconds are of the process's CPU
time, which a busy machine changes less than those of a clock, and which on a quiet one are the same.

What the pass spends its time on is tokens, one by one. Batching is most of the gain: a step for forty chunks reads the
weights once. The rest is work that is left out: what is silent is not encoded, nor is any second twice, chunks are not
filled up to a window, and so a token attends to two thirds of the positions.

Workload: the published Whisper tiny.en with its real weights, and ten minutes of speech, twenty of its windows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.claims import Claim, Row, paired_ratio, print_table
from bench.in_process import one_thread
from mstar.models.whisper.tiny_en import load_network
from mstar.models.whisper.whisper import Whisper
from mstar.requests import AudioInput, TranscriptionRequest
from mstar.wire.messages import RequestFinished

TARGET = 3.0
MAX_WORD_ERROR_RATE = 0.01
"""In at most this share of the words both may differ."""


def compare_transcripts(seconds: float, rounds: int) -> tuple[list[float], list[float], float]:
    """Repeated seconds of the single pass and of ours, and the share of words that differ."""
    from tests.integration.deployment_clients import Client, add_frontend
    from tests.models.concurrent_clients import in_process
    from tests.models.transcripts import word_error_rate
    from tests.models.whisper.recording import recording, transcribe_single_pass

    sound, theirs, ours, wanted, text = recording(seconds), list[float](), list[float](), "", ""
    with one_thread():
        model, network = Whisper(), load_network()
        with in_process("whisper", model) as deployment:
            front_end = add_frontend(deployment)

            def written(one: AudioInput) -> str:
                client = Client(front_end, "whisper", TranscriptionRequest(one), timeout_s=300)
                client.wait(300)
                assert isinstance(client.end, RequestFinished), client.end
                return client.end.result.content.text

            for act in (written, lambda one: transcribe_single_pass(network, one)):
                act(AudioInput(sound.samples[: 21 * sound.rate], sound.rate))  # the first time, everything is loaded
            for _ in range(rounds):
                begun = time.process_time()
                text = written(sound)
                middle = time.process_time()
                wanted = transcribe_single_pass(network, sound)
                ours.append(middle - begun)
                theirs.append(time.process_time() - middle)
    return theirs, ours, word_error_rate(wanted, text)


def _rows(seconds: float, rounds: int) -> list[Row]:
    theirs, ours, differing = compare_transcripts(seconds, rounds)
    return [
        Row("transformers, from beginning to end", "s", theirs),
        Row("chunks side by side", "s", ours),
        Row("  times as fast", "x", [one / own for one, own in zip(theirs, ours, strict=True)]),
        Row("  words that differ", "%", [100 * differing]),
    ]


def rows() -> Sequence[Row]:
    """Seconds for two minutes of speech, and in how many words both differ."""
    return _rows(120, rounds=1)


def longform() -> Claim:
    """Are ten minutes of speech written down three times as fast as in one pass, with the same words?"""
    results = _rows(600, rounds=2)
    print_table(results)
    theirs, ours, _, differing = results
    value, share = paired_ratio(theirs.values, ours.values), differing.best / 100
    text = (
        f"ten minutes of speech are written down at least {TARGET:g} times as fast as in one pass, with the same words"
    )
    return Claim(
        text,
        round(value, 2),
        TARGET,
        value >= TARGET and share <= MAX_WORD_ERROR_RATE,
        {"words that differ": round(share, 4)},
    )
