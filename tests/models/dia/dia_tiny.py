"""Tiny Dia and DAC with random weights, as `save_pretrained` writes them, and the outputs of transformers for them."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import (
    DacConfig,
    DacModel,
    DiaConfig,
    DiaFeatureExtractor,
    DiaForConditionalGeneration,
    DiaProcessor,
    DiaTokenizer,
    GenerationConfig,
)

from mstar.models.dia.checkpoint import MAX_DELAY
from mstar.models.dia.dia import WINDOW_FRAMES
from mstar.nn.lm.random_numbers import arrival_times, draw_key

CODES = 32
END, PAD, START = CODES, CODES + 1, CODES + 2
HOP = 512
LOOKAHEAD = 4757
"""Samples at the end of a part that need later frames."""
_HEADS = {"num_attention_heads": 4, "head_dim": 16, "norm_eps": 1e-5}
_ENCODER = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_key_value_heads": 4, **_HEADS}
_DECODER = {
    **_HEADS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "cross_num_attention_heads": 4,
    "cross_num_key_value_heads": 4,
    "cross_head_dim": 16,
    "cross_hidden_size": 48,
    "vocab_size": CODES + 4,
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
_DAC = {
    "encoder_hidden_size": 4,
    "decoder_hidden_size": 32,
    "codebook_size": CODES,
    "codebook_dim": 4,
    "sampling_rate": 44_100,
}
GENERATION = {"do_sample": True, "temperature": 1.8, "top_k": 10, "top_p": 0.9, "guidance_scale": 3.0}


def save(folder: Path, frames: int = 40) -> str:
    """Save both checkpoints with their processor, and return the folder of Dia.

    Speech has at most `frames` frames.
    """
    torch.manual_seed(0)
    network = DiaForConditionalGeneration(DiaConfig(encoder_config=_ENCODER, decoder_config=_DECODER)).eval()
    codec = DacModel(DacConfig(**_DAC)).eval()
    with torch.no_grad():
        for value in network.parameters():
            if value.ndim > 1:
                value.mul_(6)
        for name, value in codec.named_parameters():
            if value.ndim > 2:
                value.normal_(std=0.7 * value[0].numel() ** -0.5)
            elif "codebook" in name:
                value.normal_()
        loud: list[Any] = []
        codec.decoder.tanh.register_forward_pre_hook(lambda _, inputs: loud.append(inputs[0].std()))
        codec.decode(audio_codes=torch.randint(CODES, (1, 9, 40)))
        codec.decoder.conv2.weight.mul_(0.3 / loud[0])
    codec.save_pretrained(folder / "dac")
    network.generation_config = GenerationConfig(
        **GENERATION,
        max_length=frames + 2,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=PAD,
        decoder_start_token_id=START,
    )
    network.save_pretrained(folder)
    codec = DacModel.from_pretrained(folder / "dac")
    DiaProcessor(DiaFeatureExtractor(), DiaTokenizer(), codec).save_pretrained(folder)
    return str(folder)


class Library:
    """The model of transformers, from the same folder."""

    def __init__(self, folder: str) -> None:
        self.network: Any = DiaForConditionalGeneration.from_pretrained(folder).eval()
        self.codec: Any = DacModel.from_pretrained(Path(folder) / "dac").eval()
        self.processor = DiaProcessor(DiaFeatureExtractor(), DiaTokenizer(), self.codec)
        self._special = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}

    def write(self, text: str, frames: int, seed: int = 0, **how: Any) -> torch.Tensor:
        """Delayed codes of a text, [frames, channels], as `generate` returns them with our random numbers."""
        draws = itertools.count()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # its defaults do not fit each other
            inputs = self.processor(text=[text], **self._special)

        def multinomial(probs: torch.Tensor, num_samples: int) -> torch.Tensor:
            assert num_samples == 1
            keys = torch.tensor([[draw_key(seed, next(draws))] for _ in probs])
            return (probs / arrival_times(keys, torch.arange(probs.shape[1])).float()).argmax(1, keepdim=True)

        with patch("torch.multinomial", multinomial):
            return self.network.generate(**inputs, max_new_tokens=frames + 1 + MAX_DELAY, **how)[0]

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Audio of these codes."""
        return self.processor.decode(codes[None], **self._special)

    def emissions(self, text: str, frames: int, seed: int) -> list[torch.Tensor]:
        """Audio of a text in the parts in which it is streamed."""
        audio = self.decode(self.write(text, frames, seed))
        windows = range(1, 1 + len(audio) // (WINDOW_FRAMES * HOP))
        return list(audio.tensor_split([number * WINDOW_FRAMES * HOP - LOOKAHEAD for number in windows]))
