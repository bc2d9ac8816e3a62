"""Stages of MobileStyleGAN as components: style mapping, band synthesis, and wavelet upsampling.

Weights are config.json and model.safetensors, as `scripts/fetch-faces` writes them. torch is imported by the first op.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float32, LoadError, Tensor, UInt8, op

DEFAULT_WEIGHTS = "~/.cache/mstar/mobilestylegan-ffhq"
"""Default folder of `scripts/fetch-faces`."""
TRUNCATION = 0.5
"""Truncation trick: scale of the distance from the mean style. Lower values give less variety and better quality."""


class StyleMapper(Component):
    """Maps a seed to a style. Deterministic."""

    runs_on_device = True

    def __init__(self, weights: str) -> None:
        self._weights = weights

    @functools.cached_property
    def network(self) -> Any:
        """The mapping network, loaded on first use on the device of the component."""
        return self.on_device(_load_part(self._weights, "mapping"))

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op
    def style(self, seed: int) -> Float32[Tensor, "S"]:
        """Return the truncated style of a seed."""
        import numpy as np
        import torch

        mean = self.network.mean
        noise = np.random.default_rng(seed % 2**64).standard_normal(len(mean), np.float32)
        with torch.inference_mode():
            return mean + TRUNCATION * (self.network(torch.from_numpy(noise).to(mean.device)) - mean)


class BandSynthesizer(Component):
    """Generates the four wavelet bands of a half-size image: one low band and three detail bands."""

    runs_on_device = True

    def __init__(self, weights: str) -> None:
        self._weights = weights

    @functools.cached_property
    def network(self) -> Any:
        """The synthesis network, loaded on first use on the device of the component."""
        return self.on_device(_load_part(self._weights, "synthesis"))

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op
    def bands(self, style: Float32[Tensor, "S"]) -> Float32[Tensor, "12 H W"]:
        """Return the bands of three colors. Not batched, because on a CPU batching gains nothing and adds latency."""
        import torch

        with torch.inference_mode():
            return self.network(torch.as_tensor(style, device=self.device)[None])[0]


class WaveletUpsampler(Component):
    """Converts bands to pixels. Has no weights."""

    runs_on_device = True

    @op
    def to_image(self, bands: Float32[Tensor, "12 H W"], step: int, sizes: int) -> UInt8[Tensor, "X Y 3"]:
        """Return the image of a step: full size at the last step, half as wide for each step before."""
        import torch
        from torch.nn.functional import avg_pool2d

        from mstar.models.faces.network import inverse_haar

        bands, halvings = torch.as_tensor(bands, device=self.device)[None], sizes - 1 - step
        low = bands[:, :3] / 2  # mean of four pixels
        image = avg_pool2d(low, 2 ** (halvings - 1)) if halvings else inverse_haar(bands)
        return ((image[0].clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).contiguous()


def _load_part(weights: str, part: str) -> Any:
    try:
        from mstar.models.faces.network import load_part
    except ImportError as error:
        what = f"Faces needs torch and safetensors: {error}"
        raise LoadError(f"{what}\n  fix: install torch for this machine, and safetensors") from error
    return load_part(weights, part)
