"""Tiny Parakeet CTC with random weights in the published layout, and its reference: the library, one request at a time.

The tokenizer is that of a SentencePiece model: `<unk>`, pieces with and without a leading space, and the blank last.
"""

import functools
import json

import numpy as np
import torch
import transformers as t
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mstar.requests import AudioInput

RATE = 16_000
PIECES = ["<unk>", *(f"\u2581{word}" for word in ("the", "sea", "is", "b", "")), *"abcdefghijklmnopqrstuvwxyz'.?"]
BLANK = len(PIECES)
MAX_POSITIONS = 100
"""Outputs of the longest audio: 8 s."""
ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "subsampling_conv_channels": 16,
    "num_mel_bins": 80,
    "max_position_embeddings": MAX_POSITIONS,
}


def save(folder):
    """Save a checkpoint, and return its folder. Neighboring outputs differ, and some are blank or repeated."""
    torch.manual_seed(5)
    config = t.ParakeetCTCConfig(vocab_size=BLANK + 1, pad_token_id=BLANK, encoder_config=ENCODER)
    network = t.ParakeetForCTC(config).eval()
    for name, weight in network.named_parameters():
        if weight.ndim > 1 and "bias" not in name:  # the default weights are too small for tokens to depend on audio
            weight.data.normal_(std=1.4 * weight[0].numel() ** -0.5)
        elif "bias_" in name:
            weight.data.normal_(std=0.5)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    network.ctc_head.bias.data[1:6] += 1.5  # pieces with a space
    network.ctc_head.bias.data[BLANK] = 1.5
    network.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(PIECES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    saved = t.ParakeetTokenizer(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")
    assert saved.pad_token_id == BLANK
    t.ParakeetProcessor(t.ParakeetFeatureExtractor(), saved).save_pretrained(folder)
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
    """Processor and network of the library."""
    return t.ParakeetProcessor.from_pretrained(folder), t.ParakeetForCTC.from_pretrained(folder).eval()


def library_features(folder, samples):
    """Features and mask of the library for samples at 16 kHz."""
    return library(folder)[0](samples, sampling_rate=RATE)


def library_tokens(folder, samples):
    """Likeliest token of each frame: what `generate` of the library returns for one request."""
    return library(folder)[1].generate(**library_features(folder, samples))


def library_text(folder, samples):
    """Text of one request by greedy CTC decoding of the library."""
    return library(folder)[0].batch_decode(library_tokens(folder, samples), skip_special_tokens=True)[0]


def split_processor_config(folder):
    """Rewrite the files as transformers 4 published them: preprocessor_config.json, without processor_config.json."""
    file = folder / "processor_config.json"
    extractor = json.loads(file.read_text())["feature_extractor"]
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    file.unlink()
