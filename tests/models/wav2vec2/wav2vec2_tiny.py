"""Tiny speech encoders with a CTC head and random weights, and their reference: the library, one sound at a time."""

import functools
import json

import numpy as np
import torch
import transformers as t

from mstar.cli.port.tiny_config import tiny_fields
from mstar.requests import AudioInput

RATE = 16_000
LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyz'"]
LAYER_NORM = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
"""As the large checkpoints."""
FIELDS = {
    "Wav2Vec2ForCTC": {},
    "HubertForCTC": LAYER_NORM,
    "WavLMForCTC": {},
    "UniSpeechForCTC": LAYER_NORM,
    "UniSpeechSatForCTC": {},
    "Data2VecAudioForCTC": {},
    "Wav2Vec2ConformerForCTC": {"feat_extract_norm": "layer", "conv_bias": True},
    "SEWForCTC": {},
    "SEWDForCTC": {"max_position_embeddings": 256, "position_buckets": 32},
}
"""Fields of each config beside those of `tiny_fields`."""


def save(folder, name="Wav2Vec2ForCTC"):
    """Save a checkpoint with its processor, and return its folder. Neighboring outputs differ, and some are blank."""
    torch.manual_seed(5)
    network_class = getattr(t, name)
    own = {"vocab_size": len(LETTERS), "pad_token_id": 0}
    network = network_class(
        network_class.config_class(**tiny_fields(network_class.config_class) | own | FIELDS[name])
    ).eval()
    for weight in network.parameters():
        if weight.ndim > 1:  # the default weights are too small for tokens to depend on audio
            weight.data.normal_(std=1.5 * weight[0].numel() ** -0.5)
    network.lm_head.bias.data[1:4] -= 9.0  # special tokens are not written
    network.lm_head.bias.data[4] += 2.0
    network.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(LETTERS)}))
    t.Wav2Vec2CTCTokenizer(folder / "vocab.json").save_pretrained(folder)
    is_layer_norm = FIELDS[name].get("feat_extract_norm") == "layer"
    t.Wav2Vec2FeatureExtractor(return_attention_mask=is_layer_norm).save_pretrained(folder)
    return str(folder)


@functools.cache
def sound(seed, seconds=2.0, rate=RATE):
    """Hums that change in pitch and loudness over time."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * rate)) / rate
    hum = sum(np.sin(2 * np.pi * rng.uniform(100, 4000) * at + 3 * np.sin(rng.uniform(1, 9) * at)) for _ in range(4))
    return AudioInput((hum * np.abs(np.sin(rng.uniform(2, 7) * at)) / 5).astype(np.float32), rate)


@functools.cache
def library(folder):
    """Feature extractor, tokenizer and network of the library."""
    extractor = t.Wav2Vec2FeatureExtractor.from_pretrained(folder)
    return extractor, t.AutoTokenizer.from_pretrained(folder), t.AutoModelForCTC.from_pretrained(folder).eval()


def library_output(folder, samples):
    """What the tokenizer of the library makes of the likeliest tokens for samples at 16 kHz."""
    extractor, tokenizer, network = library(folder)
    with torch.inference_mode():
        logits = network(**extractor(samples, sampling_rate=RATE, return_tensors="pt")).logits
    return tokenizer.decode(logits[0].argmax(-1), output_word_offsets=True)


def library_text(folder, samples):
    """Text of one sound by greedy CTC decoding of the library."""
    return library_output(folder, samples).text
