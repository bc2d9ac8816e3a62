"""VAE decoders of diffusion models: latents to pixels, with the networks of diffusers.

An image is decoded at once. A video is decoded frame by frame of its latents, with the causal convolution cache that
diffusers keeps inside one call, so that the client receives the first frames early. Latents are not tiled.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float, State, Tensor, UInt8, op, stacked
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.requests import ImageInput


class Vae(Component):
    """Autoencoder of a diffusion model."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> Any:
        """The diffusers network, loaded on first use on the device of the component."""
        return self.on_device(self._checkpoint.network("vae"))

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network


class ImageVae(Vae):
    """VAE of Stable Diffusion 3."""

    @op(batch=stacked, rowwise_on_cpu=True)
    def decode_image(self, latents: Float[Tensor, "C H W"]) -> UInt8[Tensor, "Y X 3"]:
        """Decode latents to pixels. Noisy latents give previews."""
        return to_uint8(self.decode_pixels(latents))

    def decode_pixels(self, latents: Tensor) -> Tensor:
        """Decode a batch inside an op, [rows, height, width, 3] from -1 to 1."""
        import torch

        config = self.network.config
        with torch.inference_mode():
            decoded = self.network.decode(latents / config.scaling_factor + config.shift_factor).sample
        return decoded.permute(0, 2, 3, 1)


class DecoderCache(State):
    """Causal convolution cache of the video decoder."""

    def __init__(self) -> None:
        self.layers: list[Any] = []
        """Cached frames of each convolution. Replaced on each call, never mutated."""

    def snapshot(self) -> dict[str, Any]:
        """Return the cache without a copy, because it is never mutated."""
        return dict(vars(self))


def latent_scales(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the pixels per latent and the frames per latent frame. Wan2.1 configs lack both."""
    config = checkpoint.config("vae")
    return config.get("scale_factor_spatial", 8), config.get("scale_factor_temporal", 4)


class VideoVae(Vae):
    """VAE of Wan."""

    @op
    def encode_first_frame(self, size: list[int], source: ImageInput | None) -> Float[Tensor, "C K H W"]:
        """Encode the first frame of a video, or return no frames without a source."""
        import torch

        (scale, _), (_, height, width) = latent_scales(self._checkpoint), size
        if source is None:
            return torch.zeros(self._checkpoint.config("vae")["z_dim"], 0, height, width, device=self.device)
        mean, std = self._latent_statistics
        with torch.inference_mode():
            frame = resize_frame(source, height, width, scale).to(self.network.device)
            latents = self.network.encode(frame).latent_dist.mode()[0]
        return (latents - mean) / std

    @op
    def decode_frame(
        self, latents: Float[Tensor, "C F H W"], step: int, cache: DecoderCache
    ) -> UInt8[Tensor, "N Y X 3"]:
        """Decode one latent frame: one video frame at first, then several."""
        return to_uint8(self.decode_pixels(latents, step, cache))

    def decode_pixels(self, latents: Tensor, step: int, cache: DecoderCache) -> Tensor:
        """Decode one latent frame inside an op, [frames, height, width, 3] from -1 to 1."""
        import torch
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        mean, std = self._latent_statistics
        network, layers = self.network, [*cache.layers] or [None] * self._cached_layers
        with torch.inference_mode():
            inputs = network.post_quant_conv((latents[:, step : step + 1] * std + mean)[None])
            decoded = network.decoder(inputs, feat_cache=layers, feat_idx=[0], first_chunk=step == 0)
            decoded = unpatchify(decoded, network.config.patch_size or 1)[0]
        cache.layers = layers
        return decoded.permute(1, 2, 3, 0)

    @functools.cached_property
    def _cached_layers(self) -> int:
        """Number of convolutions with a cache."""
        from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

        return sum(isinstance(module, WanCausalConv3d) for module in self.network.decoder.modules())

    @functools.cached_property
    def _latent_statistics(self) -> Tensor:
        """Mean and standard deviation of each latent channel."""
        import torch

        config = self.network.config
        return torch.tensor([config.latents_mean, config.latents_std], device=self.device)[..., None, None, None]


def resize_frame(source: ImageInput, height: int, width: int, scale: int) -> Tensor:
    """A video of one frame for latents of this size, [1, 3, 1, y, x] from -1 to 1."""
    from diffusers.image_processor import VaeImageProcessor
    from PIL import Image

    processor, image = VaeImageProcessor(vae_scale_factor=scale), Image.fromarray(source.pixels)
    return processor.preprocess(image, height * scale, width * scale)[:, :, None]


def to_uint8(decoded: Tensor) -> Tensor:
    """Pixels of a decoder, from -1 to 1, as bytes."""
    import torch

    return ((decoded * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
