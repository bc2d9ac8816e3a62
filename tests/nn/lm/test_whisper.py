"""Whisper tiny.en with its real weights, as a walk: the text is what was said, word for word.

`peter.wav` was spoken by espeak-ng: "Good morning. My name is Peter, and I live in London." Nothing else is in it.
"""

import base64
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as t

from mstar import Float32, Int64, Model, Tensor, Text, loop, walk
from mstar.models.whisper.tiny_en import END_OF_TEXT, TINY_EN_VOCABULARY, load_network
from mstar.nn.lm.seq2seq import Seq2SeqLM
from mstar.requests import Sampling
from mstar.testing.local_runtime import LocalRuntime

START = torch.tensor([50257, 50362])
"""A transcript begins, and it has no time stamps."""


class Transcriber(Model):
    """Writes down what is said."""

    def __init__(self):
        self.lm = Seq2SeqLM(load_network, eos_token_id=END_OF_TEXT, pages=400)

    @walk
    def write(self, features: Float32[Tensor, "M F"], start: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Text]:
        kv = self.lm.kv()
        self.lm.write_encoder_states(self.lm.encode(features), kv)
        s = loop(steps=sampling.max_tokens, token=self.lm.next_token(start, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, sampling)
            s.stop_when(self.lm.is_end(s.token, sampling))


TRANSCRIPTS = [
    " Good morning. My name is Peter and I live in London.",
    " Good morning.",
    " My name is Peter and I live in London",
]


def spectra():
    """Of all that is said, and of each sentence by itself."""
    with wave.open(str(Path(__file__).parents[1] / "peter.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.uint8) / np.float32(128) - 1
        rate = file.getframerate()
    extract, pause = t.WhisperFeatureExtractor(), round(1.05 * rate)
    parts = (samples, samples[:pause], samples[pause:])
    return [extract(part, sampling_rate=rate, return_tensors="pt").input_features[0] for part in parts]


def reference_transcripts(features):
    how = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": END_OF_TEXT}
    made = t.GenerationMixin.generate(load_network(), features[None], decoder_input_ids=START[None], **how)
    return made[0, len(START) :].tolist()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_three_transcripts_alone_together_and_by_the_library():
    lines = [line.split() for line in TINY_EN_VOCABULARY.path().read_text().splitlines()]
    words = {int(number): base64.b64decode(word) for word, number in lines} | {END_OF_TEXT: b""}

    def text(tokens):
        return b"".join(words[int(token)] for token in tokens).decode()

    model, spectrograms = Transcriber(), spectra()
    requests = [{"features": each, "start": START, "sampling": Sampling(max_tokens=40)} for each in spectrograms]
    assert [text(each.value for each in model.run(one).emissions) for one in requests] == TRANSCRIPTS
    runtime = LocalRuntime(model, seed=1, max_batched_tokens=512)
    together = runtime.run_all(requests)
    assert [text(each.value for each in outcome.emissions) for outcome in together] == TRANSCRIPTS
    assert max(count for _, count in runtime.batches) > 1
    assert [text(reference_transcripts(each)) for each in spectrograms] == TRANSCRIPTS
