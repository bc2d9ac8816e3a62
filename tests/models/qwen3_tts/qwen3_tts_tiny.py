"""Tiny Qwen3-TTS of the golden data in the published layout.

`golden/qwen3_tts` holds its random weights and the float32 outputs of the package qwen-tts 0.1.1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3_tts"
SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_code_groups": 16}
TALKER: dict[str, Any] = {
    **SIZES,
    "vocab_size": 1088,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "text_hidden_size": 48,
    "text_vocab_size": 300,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "interleaved": True},
    "max_position_embeddings": 2048,
    "codec_eos_token_id": 80,
    "codec_think_id": 81,
    "codec_nothink_id": 82,
    "codec_think_bos_id": 83,
    "codec_think_eos_id": 84,
    "codec_pad_id": 85,
    "codec_bos_id": 86,
    "spk_id": {"vivian": 90},
    "spk_is_dialect": {"vivian": False},
    "codec_language_id": {"english": 95, "chinese": 96},
    "code_predictor_config": {
        **SIZES,
        "vocab_size": 64,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000,
    },
}
CONFIG = {
    "tts_model_type": "custom_voice",
    "tokenizer_type": "qwen3_tts_tokenizer_12hz",
    "im_start_token_id": 200,
    "im_end_token_id": 201,
    "tts_pad_token_id": 202,
    "tts_bos_token_id": 203,
    "tts_eos_token_id": 204,
    "talker_config": TALKER,
}
CODEC = {
    "codebook_size": 64,
    "codebook_dim": 32,
    "num_quantizers": 16,
    "latent_dim": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "sliding_window": 16,
    "rope_theta": 10_000,
    "rms_norm_eps": 1e-5,
    "upsampling_ratios": [2, 2],
    "upsample_rates": [4, 2],
    "decoder_dim": 32,
    "max_position_embeddings": 4096,
}


def save(folder: Path) -> str:
    """Save the checkpoint, and return its folder."""
    codec = folder / "speech_tokenizer"
    codec.mkdir()
    for place, name in ((folder, "weights"), (codec, "weights_codec")):
        (place / "model.safetensors").symlink_to(GOLDEN / f"{name}.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (codec / "config.json").write_text(json.dumps({"decoder_config": CODEC}))
    words = {"assistant": 5, "\n": 6} | {f"w{number}": number for number in range(300) if number not in (5, 6)}
    made = Tokenizer(models.WordLevel(words, unk_token="w7"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex("\n"), "isolated")]
    )
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


def cases() -> dict[str, dict[str, Any]]:
    """Return the reference outputs by case."""
    cases: dict[str, dict[str, Any]] = {}
    for name, value in load_file(GOLDEN / "cases.safetensors").items():
        case, _, what = name.partition(".")
        cases.setdefault(case, {})[what] = value
    return cases
