"""Whisper tiny.en with a long recording: chunks side by side, stitched, against one pass from beginning to end.

The pass is transformers' own: its `generate` goes through the recording window after window, each beginning where the
last words of the one before ended. Real weights, float32, greedy, one thread for both. The gain is from batching; that
some seconds of each chunk are heard twice is in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.claims import Row
from bench.speech.crowd import one_thread
from mstar.asks import Transcription
from mstar.models.voice.tiny_en import read_network
from mstar.models.voice.whisper import Whisper

SECONDS = 120
ROUNDS = 2


def heard(seconds: float, rounds: int) -> tuple[list[float], list[float], float]:
    """Seconds of the single pass and of ours, each so many times, and the share of words in which they differ."""
    from tests.models.parts import misheard
    from tests.models.recording import recording, single_pass
    from tests.models.spoken import together
    from tests.served.parts import Client, front

    sound, theirs, ours, text = recording(seconds), list[float](), list[float](), ""
    with one_thread():
        model, network = Whisper(), read_network()
        with together("whisper", model) as deployment:
            front_end = front(deployment)
            for number in range(rounds + 1):
                begun = time.perf_counter()
                Client(front_end, "whisper", Transcription(sound), patience=60).wait(60)
                middle = time.perf_counter()
                if number:  # the first round loads everything
                    text = single_pass(network, sound)
                    ours.append(middle - begun)
                    theirs.append(time.perf_counter() - middle)
        differing = misheard(text, model.run(Transcription(sound)).result.text)
    return theirs, ours, differing


def rows() -> Sequence[Row]:
    """Seconds for two minutes of speech, and in how many words both differ."""
    theirs, ours, differing = heard(SECONDS, ROUNDS)
    return [
        Row("transformers, from beginning to end", "s", theirs),
        Row("chunks side by side", "s", ours),
        Row("  times as fast", "x", [one / own for one, own in zip(theirs, ours, strict=True)]),
        Row("  words that differ", "%", [100 * differing]),
    ]
