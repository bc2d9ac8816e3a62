"""Tiny Orpheus with random weights in the published layout, and the output of the published decoder."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # the package scripts a function on import
    from snac import SNAC

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
START, EOT = "<|begin_of_text|>", "<|eot_id|>"
CODES = 4096
SPECIAL = len(BYTES) + 2
"""Id of `<custom_token_0>`."""
FIRST, OVER = SPECIAL + 10, SPECIAL + 2
VOCABULARY = FIRST + 7 * CODES
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SNAC_SMALL = {"sampling_rate": 24_000, "encoder_dim": 2, "encoder_rates": [2, 4, 8, 8], "decoder_dim": 32}
SNAC_SMALL |= {"decoder_rates": [8, 8, 4, 2], "attn_window_size": None, "codebook_size": CODES, "codebook_dim": 8}
SNAC_SMALL |= {"vq_strides": [4, 2, 1], "noise": True, "depthwise": True}


def save(
    folder: Path,
    llama: dict[str, Any] = SMALL,
    snac: dict[str, Any] = SNAC_SMALL,
    dtype: torch.dtype = torch.float32,
) -> tuple[str, str]:
    """Save both checkpoints, and return their folders."""
    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(**llama, vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=4096)
    )
    for weight in network.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[1] ** -0.5)
    network.to(dtype).save_pretrained(folder / "lm")
    _tokenizer().save(str(folder / "lm" / "tokenizer.json"))
    codec = SNAC(**snac)
    (folder / "snac").mkdir()
    (folder / "snac" / "config.json").write_text(json.dumps(snac))
    save_file(codec.state_dict(), folder / "snac" / "model.safetensors")
    return str(folder / "lm"), str(folder / "snac")


def read_snac(folder: str) -> SNAC:
    """Load the library's own network."""
    codec = SNAC(**json.loads(Path(folder, "config.json").read_bytes())).eval()
    codec.load_state_dict(load_file(Path(folder, "model.safetensors")))
    return codec


def _tokenizer() -> Tokenizer:
    words = {letter: number for number, letter in enumerate([*BYTES, START, EOT])}
    words |= {f"<custom_token_{number}>": SPECIAL + number for number in range(VOCABULARY - SPECIAL)}
    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens([START, EOT, *(f"<custom_token_{number}>" for number in range(10))])
    made.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, words[START])])
    return made


def prompt(voice: str, text: str) -> list[int]:
    """Apply the published prompt template."""
    text_ids = [
        BYTES.index(letter)
        for letter in pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(
            f"{voice}: {text}"
        )[0][0]
    ]
    return [SPECIAL + 3, len(BYTES), *text_ids, len(BYTES) + 1, SPECIAL + 4, SPECIAL + 5, SPECIAL + 1]


def allowed(prompted: int):
    """Restriction of codes to their position in a frame, as a logits processor of transformers."""

    def after(_: int, tokens: torch.Tensor) -> list[int]:
        written = len(tokens) - prompted
        first = FIRST + written % 7 * CODES
        return [*range(first, first + CODES)] + ([OVER] if written else [])

    return after


def reference_codes(network: LlamaForCausalLM, tokens: list[int], most: int, **how: Any) -> list[int]:
    """Return the codes that transformers generates."""
    given = torch.tensor([tokens])
    written = network.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=most,
        eos_token_id=OVER,
        pad_token_id=0,
        prefix_allowed_tokens_fn=allowed(len(tokens)),
        **how,
    )[0, len(tokens) :].tolist()
    return [(token - FIRST) % CODES for token in written if token != OVER]


def levels(codes: list[int]) -> list[torch.Tensor]:
    """Arrange codes by level, as SNAC reads them."""
    frames = torch.tensor(codes[: len(codes) // 7 * 7]).view(1, -1, 7)
    return [frames[:, :, level].flatten(1) for level in ([0], [1, 4], [2, 3, 5, 6])]


def decode_windows(codec: SNAC, codes: list[int]) -> torch.Tensor:
    """Published decoder: every seven codes it decodes the last 28 and keeps the second frame."""
    ends = range(28, len(codes) + 1, 7)
    return torch.cat([codec.decode(levels(codes[end - 28 : end]))[0, 0, 2048:4096] for end in ends])
