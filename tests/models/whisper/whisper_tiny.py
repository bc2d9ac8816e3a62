"""Small Whisper with random weights in three languages, saved in the Hugging Face layout.

Its window is five seconds. Tokens are single letters, and every layer has an effect.
"""

import functools
import string

import numpy as np
import torch
import transformers as t
from tokenizers import Tokenizer, decoders, models

from mstar.requests import AudioInput

LETTERS = " " + string.ascii_letters + string.digits
END = len(LETTERS)
BEGIN, EN, DE, FR, TRANSLATE, TRANSCRIBE, PLAIN = range(END + 1, END + 8)
ZERO = PLAIN + 1
SECONDS, RATE = 5, 16_000
SIZE = {
    "vocab_size": ZERO + SECONDS * 50 + 1,
    "num_mel_bins": 80,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": SECONDS * 50,
    "max_target_positions": 448,
    "decoder_start_token_id": BEGIN,
    "bos_token_id": BEGIN,
    "eos_token_id": END,
    "pad_token_id": END,
}
GENERATION_CONFIG = {
    "no_timestamps_token_id": PLAIN,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE, "<|fr|>": FR},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "suppress_tokens": [3, 4, BEGIN, EN, DE, FR, TRANSLATE, TRANSCRIBE],
    "begin_suppress_tokens": [0, END],
    "max_initial_timestamp_index": 50,
    "max_length": 448,
}


def save(folder, *, is_english=False, is_wordy=False):
    """Save a checkpoint. An English-only one has no language tokens. A wordy one writes longer texts."""
    torch.manual_seed(3)
    network = t.WhisperForConditionalGeneration(t.WhisperConfig(**SIZE)).eval()
    for weight in network.parameters():
        if weight.ndim > 1:  # the default weights are too small for tokens to depend on the audio
            weight.data.normal_(std=1.5 * weight[0].numel() ** -0.5)
    network.model.decoder.embed_tokens.weight.data[END] *= 1.6  # so that it ends sometimes
    if is_wordy:
        network.model.decoder.embed_tokens.weight.data[:END] *= 1.5
        network.model.decoder.embed_tokens.weight.data[ZERO:] *= 0.5
    settings = {
        k: v
        for k, v in GENERATION_CONFIG.items()
        if not (is_english and k in {"lang_to_id", "task_to_id", "is_multilingual"})
    }
    tokens = {name: number for name, number in SIZE.items() if name.endswith("_token_id")}
    network.generation_config = t.GenerationConfig(**tokens, **settings)
    network.save_pretrained(folder)
    t.WhisperFeatureExtractor(chunk_length=SECONDS).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(LETTERS)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@functools.cache
def sound(seed, seconds=2):
    """Hums that change in pitch and loudness over time."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * RATE)) / RATE
    hum = sum(np.sin(2 * np.pi * rng.uniform(100, 4000) * at + 3 * np.sin(rng.uniform(1, 9) * at)) for _ in range(4))
    return AudioInput((hum * np.abs(np.sin(rng.uniform(2, 7) * at)) / 5).astype(np.float32), RATE)
