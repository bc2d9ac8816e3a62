"""Tiny CSM with random weights, as `save_pretrained` writes it, and the outputs of transformers for the same folder.

The heads never write the three codes per codebook that Mimi does not have, as those of the published network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CsmConfig,
    CsmForConditionalGeneration,
    CsmProcessor,
    EncodecFeatureExtractor,
    PreTrainedTokenizerFast,
)

NON_CODES = 3
HOP = 8
SPECIAL_TOKENS = 4
_START, _END, _AUDIO, _AUDIO_END, _UNKNOWN = "<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>", "w6"
_ROPE = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_MIMI = {
    "model_type": "mimi",
    "hidden_size": 32,
    "num_filters": 4,
    "upsampling_ratios": [2, 2],
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
    "upsample_groups": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 6,
}


def config(codebooks: int, codes: int) -> CsmConfig:
    """Config with this number of codebooks, and of codes that Mimi has."""
    own = {"num_codebooks": codebooks, "vocab_size": codes + NON_CODES}
    scaled = {"low_freq_factor": 0.001953125, "high_freq_factor": 0.0078125, "original_max_position_embeddings": 16}
    depth = {
        **own,
        **_HEADS,
        "backbone_hidden_size": 64,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "max_position_embeddings": 33,
        "rope_parameters": _ROPE | scaled,
    }
    scaled = {"low_freq_factor": 0.125, "high_freq_factor": 0.5, "original_max_position_embeddings": 1024}
    return CsmConfig(
        **own,
        **_HEADS,
        text_vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        rope_parameters=_ROPE | scaled,
        bos_token_id=0,
        pad_token_id=2,
        audio_token_id=2,
        audio_eos_token_id=3,
        codebook_pad_token_id=codes + NON_CODES - 1,
        depth_decoder_config=depth,
        codec_config=_MIMI | {"num_quantizers": codebooks, "codebook_size": codes},
    )


def save(folder: Path, codebooks: int = 6, codes: int = 32) -> str:
    """Save the checkpoint with its processor, and return its folder."""
    torch.manual_seed(0)
    network = CsmForConditionalGeneration(config(codebooks, codes)).eval()
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name.endswith(("embed_sum", "scale")):
                value.normal_()  # the library makes these small or zero
            elif value.ndim > 1 and not name.startswith("codec_model."):
                value.mul_(5)
            elif value.ndim > 1 and len(value) == 1:
                value.mul_(0.02)  # the last layer of the decoder: samples are within 1
        heads = network.depth_decoder.codebooks_head.weight.transpose(1, 2)
        for head in (network.lm_head.weight, *heads):
            head[-NON_CODES:] = head[:-NON_CODES].mean(0)  # a mean of logits is never the largest one
    network.save_pretrained(folder)
    CsmProcessor(EncodecFeatureExtractor(), _tokenizer()).save_pretrained(folder)
    return str(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Tokens are words and brackets; a text starts and ends with a token, as with the published tokenizer."""
    special = {token: number for number, token in enumerate((_START, _END, _AUDIO, _AUDIO_END))}
    words = {"[": 4, "]": 5} | {str(number): 290 + number for number in range(10)}
    made = Tokenizer(models.WordLevel(special | words | {f"w{n}": n for n in range(6, 290)}, unk_token=_UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex(r"[\[\]|]"), "isolated")]
    )
    made.post_processor = processors.TemplateProcessing(f"{_START} $A {_END}", None, [(_START, 0), (_END, 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=_START,
        eos_token=_END,
        pad_token=_AUDIO,
        extra_special_tokens={"audio_token": _AUDIO, "audio_eos_token": _AUDIO_END},
    )


class Library:
    """The model of transformers, from the same folder."""

    def __init__(self, folder: str) -> None:
        self.network: Any = CsmForConditionalGeneration.from_pretrained(folder).eval()
        self.processor = CsmProcessor.from_pretrained(folder)

    def speak(self, text: str, voice: str, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Greedy codes of a text, [frames, codebooks], and their audio."""
        inputs = self.processor(f"[{voice}]{text}", add_special_tokens=True)
        output = self.network.generate(
            **inputs,
            output_audio=True,
            return_dict_in_generate=True,
            max_new_tokens=frames,
            do_sample=False,
            depth_decoder_do_sample=False,
        )
        return output.sequences[0], output.audio[0]
