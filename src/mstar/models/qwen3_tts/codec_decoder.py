"""The decoder of Qwen3-TTS's codec: frames of sixteen codes to sound, 12.5 a second.

It is transformers' Code2Wav of Qwen3-Omni between other ends: codebooks that are sums over what they stood for, a
convolution before the transformer, and a transformer of a size of its own. All of it is causal. Sound is not encoded.
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
"""A code that stood for nothing is divided by this."""


class CodecDecoder(Qwen3OmniMoeCode2Wav):
    """The network. Its codebooks are joined, and hold what each code adds to a frame."""

    def __init__(self, config: Qwen3OmniMoeCode2WavConfig) -> None:
        latent, depth = config.latent_dim, config.num_hidden_layers
        own, config.hidden_size, config.num_hidden_layers = config.hidden_size, latent, 0
        super().__init__(config)
        config.hidden_size, config.num_hidden_layers = own, depth
        self.pre_transformer = Qwen3OmniMoeCode2WavTransformerModel(config)
        self.input_proj, self.output_proj = nn.Linear(latent, own), nn.Linear(own, latent)
        self.code_embedding = nn.Embedding(config.codebook_size * config.num_quantizers, config.codebook_dim)
        self.pre_conv = Qwen3OmniMoeCausalConvNet(config.codebook_dim, latent, 3)
        for part in self.modules():
            if isinstance(part, Qwen3OmniMoeCausalTransConvNet):
                part.left_pad = 0  # Qwen3-Omni's cuts the beginning as well

    def forward(self, codes: Tensor, **_: Any) -> Tensor:
        """[rows, codebooks, frames] to [rows, 1, samples]."""
        hidden = self.code_embedding(codes + self.code_offset).sum(1)
        hidden = self.input_proj(self.pre_conv(hidden.transpose(1, 2)).transpose(1, 2))
        hidden = self.output_proj(self.pre_transformer(inputs_embeds=hidden).last_hidden_state).transpose(1, 2)
        for block in (*[part for pair in self.upsample for part in pair.children()], *self.decoder):
            hidden = block(hidden)
        return hidden.clamp(-1, 1)


def load_codec_decoder(shape: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """The network of a codec's tensors, by the names they have in its file."""
    config = Qwen3OmniMoeCode2WavConfig(
        **shape, rope_parameters={"rope_type": "default", "rope_theta": shape["rope_theta"]}
    )
    named = {name: one for name, one in tensors.items() if not name.startswith("quantizer.")}
    for name in [name for name in named if name.startswith("pre_transformer.") and "put_proj" in name]:
        named[name.removeprefix("pre_transformer.")] = named.pop(name)
    books = _codebook_vectors("quantizer.rvq_first.", 1, tensors) + _codebook_vectors(
        "quantizer.rvq_rest.", config.num_quantizers - 1, tensors
    )
    return assemble(CodecDecoder, config, named | {"code_embedding.weight": torch.cat(books)}, None)


def _codebook_vectors(name: str, count: int, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """What each code of some codebooks adds to a frame."""
    output, found = tensors[f"{name}output_proj.weight"][:, :, 0], list[Tensor]()
    for number in range(count):
        book = f"{name}vq.layers.{number}._codebook."
        usage = tensors[f"{book}cluster_usage"].clamp(min=_MIN_CLUSTER_USAGE)
        found.append(tensors[f"{book}embedding_sum"] / usage[:, None] @ output.T)
    return found
