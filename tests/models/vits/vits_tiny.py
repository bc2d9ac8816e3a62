"""Tiny VITS with random weights as MMS-TTS is published, and its reference: the library with the seed of a request."""

import functools
import json

import numpy as np
import torch
import transformers as t

LETTERS = ["k", *"abcdefghijlmnopqrstuvwxyz", " ", "'", "<unk>"]
FIELDS = {
    "vocab_size": len(LETTERS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 64,
    "flow_size": 32,
    "spectrogram_bins": 17,
    "upsample_initial_channel": 32,
    "upsample_rates": [4, 2],
    "upsample_kernel_sizes": [8, 4],
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]],
    "duration_predictor_filter_channels": 32,
    "prior_encoder_num_flows": 2,
    "prior_encoder_num_wavenet_layers": 2,
    "posterior_encoder_num_wavenet_layers": 2,
}


def save(folder, *, speakers=1, **tokenizer):
    """Save a checkpoint with its tokenizer, and return its folder."""
    torch.manual_seed(0)
    voices = {"num_speakers": speakers, "speaker_embedding_size": 16} if speakers > 1 else {}
    network = t.VitsModel(t.VitsConfig(**FIELDS, **voices)).eval()
    network.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(LETTERS)}))
    options = {"pad_token": "k", "unk_token": "<unk>", "phonemize": False, **tokenizer}
    t.VitsTokenizer(folder / "vocab.json", language="eng", **options).save_pretrained(folder)
    return str(folder)


@functools.cache
def library(folder):
    """Tokenizer and network of the library."""
    return t.AutoTokenizer.from_pretrained(folder), t.VitsModel.from_pretrained(folder).eval()


def library_sound(folder, text, seed, *, speaker=None, rate=1.0) -> np.ndarray:
    """Samples of a text."""
    tokenizer, network = library(folder)
    with torch.inference_mode(), torch.random.fork_rng():
        torch.manual_seed(seed)
        inputs = tokenizer(text, return_tensors="pt")
        return network(**inputs, speaker_id=speaker, speaking_rate=rate).waveform[0].numpy()
