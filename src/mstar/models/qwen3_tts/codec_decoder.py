"""Codec decoder of Qwen3-TTS: frames of 16 RVQ codes at 12.5 Hz to audio.

It extends the Code2Wav of Qwen3-Omni in transformers: codebooks stored as cluster sums, a convolution before the
transformer, and a transformer of its own width. All layers are causal. Encoding is not implemented.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavTransformerModel,
)

from mstar.nn.weights.checkpoints import assemble

_MIN_CLUSTER_USAGE = 1e-5
"""Minimum cluster usage, so that an unused code does not divide by zero."""


class CodecDecoder(Qwen3OmniMoeCode2Wav):
    """Codec decoder. Its codebooks are fused into one embedding table of projected vectors."""

    def __init__(self, config: Qwen3OmniMoeCode2WavConfig) -> None:
        latent, depth = config.latent_dim, config.num_hidden_layers
        hidden_size, config.hidden_size, config.num_hidden_layers = config.hidden_size, latent, 0
        super().__init__(config)
        config.hidden_size, config.num_hidden_layers = hidden_size, depth
        self.pre_transformer = Qwen3OmniMoeCode2WavTransformerModel(config)
        self.input_proj, self.output_proj = nn.Linear(latent, hidden_size), nn.Linear(hidden_size, latent)
        self.code_embedding = nn.Embedding(config.codebook_size * config.num_quantizers, config.codebook_dim)
        self.pre_conv = Qwen3OmniMoeCausalConvNet(config.codebook_dim, latent, 3)
        for part in self.modules():
            if isinstance(part, Qwen3OmniMoeCausalTransConvNet):
                part.left_pad = 0  # Qwen3-Omni also trims the start

    def forward(self, codes: Tensor, **_: Any) -> Tensor:
        """Decode [rows, codebooks, frames] to [rows, 1, samples]."""
        hidden = self.code_embedding(codes + self.code_offset).sum(1)
        hidden = self.input_proj(self.pre_conv(hidden.transpose(1, 2)).transpose(1, 2))
        hidden = self.output_proj(self.pre_transformer(inputs_embeds=hidden).last_hidden_state).transpose(1, 2)
        for block in (*[part for pair in self.upsample for part in pair.children()], *self.decoder):
            hidden = block(hidden)
        return hidden.clamp(-1, 1)


def load_codec_decoder(shape: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """Build the decoder from tensors with their published names."""
    config = Qwen3OmniMoeCode2WavConfig(
        **shape, rope_parameters={"rope_type": "default", "rope_theta": shape["rope_theta"]}
    )
    named = {name: tensor for name, tensor in tensors.items() if not name.startswith("quantizer.")}
    for name in [name for name in named if name.startswith("pre_transformer.") and "put_proj" in name]:
        named[name.removeprefix("pre_transformer.")] = named.pop(name)
    books = _codebook_vectors("quantizer.rvq_first.", 1, tensors) + _codebook_vectors(
        "quantizer.rvq_rest.", config.num_quantizers - 1, tensors
    )
    return assemble(CodecDecoder, config, named | {"code_embedding.weight": torch.cat(books)}, None)


def _codebook_vectors(name: str, count: int, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the projected vector of each code of some codebooks."""
    output, vectors = tensors[f"{name}output_proj.weight"][:, :, 0], list[Tensor]()
    for index in range(count):
        book = f"{name}vq.layers.{index}._codebook."
        usage = tensors[f"{book}cluster_usage"].clamp(min=_MIN_CLUSTER_USAGE)
        vectors.append(tensors[f"{book}embedding_sum"] / usage[:, None] @ output.T)
    return vectors
