"""FLUX VAE of BAGEL: images to latent tokens and back, with the AutoencoderKL of diffusers.

Tensor names are those of FLUX. Requests are not batched, because convolutions gain nothing from it on CPUs.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float32, Tensor, UInt8, op
from mstar.models.bagel.checkpoint import VAE_FILE, Checkpoint, load_tensors
from mstar.models.bagel.noise import draw_noise

_SCALE = 0.3611
_SHIFT = 0.1159
_GROUPS = 32


class Vae(Component):
    """Encodes and decodes images."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @functools.cached_property
    def network(self) -> Any:
        """The diffusers network, loaded on first use on the device of the component."""
        import torch
        from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
        from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

        tensors = self._checkpoint.tensors(VAE_FILE)
        widths = []
        while (name := f"encoder.down.{len(widths)}.block.0.conv2.weight") in tensors:
            widths.append(tensors[name].shape[0])
        config = {
            "down_block_types": ["DownEncoderBlock2D"] * len(widths),
            "up_block_types": ["UpDecoderBlock2D"] * len(widths),
            "block_out_channels": widths,
            "layers_per_block": sum(key.startswith("encoder.down.0.block.") for key in tensors) // 8,
            "latent_channels": self._checkpoint.sizes.channels,
            "norm_num_groups": _GROUPS,
            "use_quant_conv": False,
            "use_post_quant_conv": False,
        }
        with torch.device("meta"):
            network = AutoencoderKL(**config)
        return self.on_device(load_tensors(network, convert_ldm_vae_checkpoint(tensors, config)))

    @op
    def encode(
        self, pixels: Float32[Tensor, "3 H W"], seed: int, image_index: int
    ) -> tuple[Float32[Tensor, "N C"], int]:
        """Encode an image to latent tokens, and return the number of tokens per row.

        The latents are sampled with the seed of the request and the index of the image.
        """
        import torch

        block = self._checkpoint.sizes.block
        with torch.inference_mode():
            mean, log_variance = self.network.encoder(pixels[None].to(self.network.dtype))[0].float().chunk(2)
        noise = draw_noise(mean.shape, seed, image_index).to(mean.device)
        latents = _SCALE * (mean + (log_variance / 2).exp() * noise - _SHIFT)
        # axes: channel, row, row in its block, column, column in its block
        cells = latents.unflatten(2, (-1, block)).unflatten(1, (-1, block))
        return cells.permute(1, 3, 2, 4, 0).flatten(2).flatten(0, 1), cells.shape[3]

    @op
    def decode(self, x: Float32[Tensor, "N C"], columns: int) -> UInt8[Tensor, "H W 3"]:
        """Decode latent tokens to pixels."""
        import torch

        sizes = self._checkpoint.sizes
        cells = x.unflatten(0, (-1, columns)).unflatten(2, (sizes.block, sizes.block, -1))
        latents = cells.permute(4, 0, 2, 1, 3).flatten(3).flatten(1, 2) / _SCALE + _SHIFT
        with torch.inference_mode():
            pixels = self.network.decoder(latents[None].to(self.network.dtype))[0].float()
        return ((pixels / 2 + 0.5).clamp(0, 1).permute(1, 2, 0) * 255).to(torch.uint8)
