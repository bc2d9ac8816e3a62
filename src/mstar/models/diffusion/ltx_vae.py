"""VAE of LTX-Video: a video is decoded at once, because the decoder sees later frames too.

Some checkpoints denoise a last time while they decode: the latents get some noise, the decoder is given its timestep,
and its layers draw more noise. diffusers takes that of the layers from its global generator; here it depends on the
seed of the request only. Latents are not tiled.
"""

from __future__ import annotations

from typing import Any

from mstar import Float, Tensor, UInt8, op
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.models.diffusion.params import DiffusionParams
from mstar.models.diffusion.vae import Vae, resize_frame, to_uint8
from mstar.requests import ImageInput


def compression_ratios(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the pixels per latent and the frames per latent frame. Configs of the first version lack both."""
    config = checkpoint.config("vae")
    halved = 2 ** sum(config["spatio_temporal_scaling"])
    spatial, temporal = config.get("spatial_compression_ratio"), config.get("temporal_compression_ratio")
    return spatial or config["patch_size"] * halved, temporal or config["patch_size_t"] * halved


def draw_noise(params: DiffusionParams, channels: int, known_frames: int) -> tuple[Tensor, Any]:
    """Draw the initial noise as diffusers does, [C, F, H, W]. Also returns the generator, for what is drawn later."""
    import torch

    generator, size = torch.Generator().manual_seed(params.seed), params.latent_size
    torch.randn(1, channels, known_frames, *size[1:], generator=generator)  # drawn by encode_first_frame
    return torch.randn(1, channels, *size, generator=generator)[0], generator


class LtxVae(Vae):
    """VAE of LTX-Video, with the timestep that it decodes at and the noise before, if its config uses them."""

    def __init__(self, checkpoint: Checkpoint, timestep: float, noise_scale: float) -> None:
        super().__init__(checkpoint)
        self._timestep = timestep
        self._noise_scale = noise_scale

    @op
    def encode_first_frame(self, params: DiffusionParams, source: ImageInput | None) -> Float[Tensor, "C K H W"]:
        """Encode the first frame of a video, or return no frames without a source."""
        import torch

        (scale, _), (_, height, width) = compression_ratios(self._checkpoint), params.latent_size
        if source is None:
            channels = self._checkpoint.config("vae")["latent_channels"]
            return torch.zeros(channels, 0, height, width, device=self.device)
        network, generator = self.network, torch.Generator().manual_seed(params.seed)
        with torch.inference_mode():
            frame = resize_frame(source, height, width, scale).to(network.device)
            encoded = network.encode(frame).latent_dist.sample(generator)[0]
        mean, std = self._latent_statistics
        return (encoded - mean) / std

    @op
    def decode_video(
        self, latents: Float[Tensor, "C F H W"], known: Float[Tensor, "C K H W"], params: DiffusionParams
    ) -> UInt8[Tensor, "N Y X 3"]:
        """Decode a video."""
        return to_uint8(self.decode_pixels(latents, known, params))

    @op
    def take_frames(self, video: UInt8[Tensor, "N Y X 3"], step: int) -> UInt8[Tensor, "M Y X 3"]:
        """Return the frames of one latent frame: one at first, then several."""
        _, count = compression_ratios(self._checkpoint)
        return video[max(0, 1 + (step - 1) * count) : 1 + step * count]

    def decode_pixels(self, latents: Tensor, known: Tensor, params: DiffusionParams) -> Tensor:
        """Decode inside an op, [frames, height, width, 3] from -1 to 1."""
        import torch

        network, timestep = self.network, None
        mean, std = self._latent_statistics
        with torch.inference_mode():
            latents = (latents * std / network.config.scaling_factor + mean)[None]
            _, generator = draw_noise(params, latents.shape[1], known.shape[1])
            if network.config.timestep_conditioning:
                noise = torch.randn(latents.shape, generator=generator).to(latents.device)
                latents = (1 - self._noise_scale) * latents + self._noise_scale * noise
                timestep = latents.new_full((1,), self._timestep)
            with _noise_of(generator):
                decoded = network.decode(latents, timestep).sample[0]
        return decoded.permute(1, 2, 3, 0)

    @property
    def _latent_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each latent channel."""
        network = self.network
        return network.latents_mean[:, None, None, None], network.latents_std[:, None, None, None]


def _noise_of(generator: Any) -> Any:
    """Context in which `torch.randn` of this thread draws from a generator on the host."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Draw(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            if func is not torch.randn:
                return func(*args, **given)
            return torch.randn(*args, generator=generator, dtype=given["dtype"]).to(given["device"])

    return Draw()
