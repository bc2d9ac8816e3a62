"""What is behind latents: pixels, by the decoders of diffusers.

A picture is decoded at once. A film is decoded frame after frame of its latents, and its decoder remembers what it saw
of those before, as diffusers has it do inside one call; here a client has the first frames while others are decoded.
Latents are not tiled.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float, State, Tensor, UInt8, op, stacked
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.requests import ImageInput


class Vae(Component):
    """The autoencoder of a model."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> Any:
        """diffusers' model."""
        return self._checkpoint.network("vae")

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network


class ImageVae(Vae):
    """That of Stable Diffusion 3."""

    @op(batch=stacked)
    def decode_image(self, latents: Float[Tensor, "C H W"]) -> UInt8[Tensor, "Y X 3"]:
        """Pixels, also of latents that are still noisy."""
        return _to_uint8(self.decode_pixels(latents))

    def decode_pixels(self, latents: Tensor) -> Tensor:
        """Inside an op: what is behind the latents of several pictures, [rows, height, width, 3] from -1 to 1."""
        import torch

        config = self.network.config
        with torch.inference_mode():
            decoded = self.network.decode(latents / config.scaling_factor + config.shift_factor).sample
        return decoded.permute(0, 2, 3, 1)


class DecoderCache(State):
    """What the decoder of a film remembers of the frames before."""

    def __init__(self) -> None:
        self.layers: list[Any] = []
        """Of each of its convolutions. It is replaced, never changed."""

    def snapshot(self) -> dict[str, Any]:
        """It as it is: what is remembered need not be copied."""
        return dict(vars(self))


def latent_scales(checkpoint: Checkpoint) -> tuple[int, int]:
    """How many pixels are one place of a film's latents, and how many frames one of its frames. Wan2.1 says neither."""
    config = checkpoint.config("vae")
    return config.get("scale_factor_spatial", 8), config.get("scale_factor_temporal", 4)


class VideoVae(Vae):
    """That of Wan."""

    @op
    def encode_first_frame(self, size: list[int], source: ImageInput | None) -> Float[Tensor, "C K H W"]:
        """The latents of a film's first frame, or of none."""
        import torch
        from diffusers.image_processor import VaeImageProcessor
        from PIL import Image

        (scale, _), (_, height, width) = latent_scales(self._checkpoint), size
        if source is None:
            return torch.zeros(self._checkpoint.config("vae")["z_dim"], 0, height, width)
        pixels = VaeImageProcessor(vae_scale_factor=scale).preprocess(
            Image.fromarray(source.pixels), height * scale, width * scale
        )
        mean, spread = self._latent_statistics()
        with torch.inference_mode():
            found = self.network.encode(pixels[:, :, None]).latent_dist.mode()[0]
        return (found - mean) / spread

    @op
    def decode_frame(
        self, latents: Float[Tensor, "C F H W"], step: int, cache: DecoderCache
    ) -> UInt8[Tensor, "N Y X 3"]:
        """Pixels of the frames that one frame of latents stands for: one at first, then several."""
        return _to_uint8(self.decode_pixels(latents, step, cache))

    def decode_pixels(self, latents: Tensor, step: int, cache: DecoderCache) -> Tensor:
        """Inside an op: what is behind a frame of latents, [frames, height, width, 3] from -1 to 1."""
        import torch
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        mean, spread = self._latent_statistics()
        network, layers = self.network, [*cache.layers] or [None] * self._cached_layers
        with torch.inference_mode():
            given = network.post_quant_conv((latents[:, step : step + 1] * spread + mean)[None])
            made = network.decoder(given, feat_cache=layers, feat_idx=[0], first_chunk=step == 0)
            made = unpatchify(made, network.config.patch_size or 1)[0]
        cache.layers = layers
        return made.permute(1, 2, 3, 0)

    @functools.cached_property
    def _cached_layers(self) -> int:
        """How many convolutions remember something."""
        from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

        return sum(isinstance(one, WanCausalConv3d) for one in self.network.decoder.modules())

    def _latent_statistics(self) -> list[Tensor]:
        import torch

        config = self.network.config
        return [torch.tensor(one)[:, None, None, None] for one in (config.latents_mean, config.latents_std)]


def _to_uint8(decoded: Tensor) -> Tensor:
    import torch

    return ((decoded * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
