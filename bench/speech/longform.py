"""Whisper tiny.en with a long recording: chunks side by side, stitched, against one pass from beginning to end.

The pass is transformers' own: its `generate` goes through the recording window after window, each beginning where the
last words of the one before ended. Real weights, float32, greedy, one thread for both. Seconds are of the process's CPU
time, which a busy machine changes less than those of a clock, and which on a quiet one are the same.

What the pass spends its time on is tokens, one by one. Batching is most of the gain: a step for forty chunks reads the
weights once. The rest is work that is left out: what is silent is not encoded, nor is any second twice, chunks are not
filled up to a window, and so a token attends to two thirds of the positions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.claims import Claim, Row, paired, print_table
from bench.here import one_thread
from mstar.asks import Sound, Transcription
from mstar.models.voice.tiny_en import read_network
from mstar.models.voice.whisper import Whisper
from mstar.wire.messages import Finished

BAR = 3.0
MISHEARD = 0.01
"""In at most this share of the words both may differ."""


def heard(seconds: float, rounds: int) -> tuple[list[float], list[float], float]:
    """Seconds of the single pass and of ours, each so many times, and the share of words in which they differ."""
    from tests.models.crowds import together
    from tests.models.parts import misheard
    from tests.models.recording import recording, single_pass
    from tests.served.parts import Client, front

    sound, theirs, ours, wanted, text = recording(seconds), list[float](), list[float](), "", ""
    with one_thread():
        model, network = Whisper(), read_network()
        with together("whisper", model) as deployment:
            front_end = front(deployment)

            def written(one: Sound) -> str:
                client = Client(front_end, "whisper", Transcription(one), patience=300)
                client.wait(300)
                assert isinstance(client.end, Finished), client.end
                return client.end.result.it.text

            for act in (written, lambda one: single_pass(network, one)):
                act(Sound(sound.samples[: 21 * sound.rate], sound.rate))  # the first time, everything is loaded
            for _ in range(rounds):
                begun = time.process_time()
                text = written(sound)
                middle = time.process_time()
                wanted = single_pass(network, sound)
                ours.append(middle - begun)
                theirs.append(time.process_time() - middle)
    return theirs, ours, misheard(wanted, text)


def _rows(seconds: float, rounds: int) -> list[Row]:
    theirs, ours, differing = heard(seconds, rounds)
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
    found = _rows(600, rounds=2)
    print_table(found)
    theirs, ours, _, differing = found
    value, share = paired(theirs.values, ours.values), differing.best / 100
    text = f"ten minutes of speech are written down at least {BAR:g} times as fast as in one pass, with the same words"
    return Claim(text, round(value, 2), BAR, value >= BAR and share <= MISHEARD, {"words that differ": round(share, 4)})
