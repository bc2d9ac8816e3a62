"""The stages of a face as components: a stylist, a painter, and a doubler that needs no weights.

Weights are a folder as `scripts/fetch-faces` writes it: config.json and model.safetensors. Pictures are not cut or
encoded here. Needs torch, which is loaded where an op first runs.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float32, LoadError, Tensor, UInt8, op

DEFAULT_WEIGHTS = "~/.cache/mstar/mobilestylegan-ffhq"
"""Where `scripts/fetch-faces` puts it."""
TRUNCATION = 0.5
"""How far a style may be from the mean of all styles: less is more alike, and finer. The publisher's choice."""


class StyleMapper(Component):
    """Seeds to styles. The same seed gives the same style."""

    def __init__(self, weights: str) -> None:
        self._weights = weights

    @functools.cached_property
    def network(self) -> Any:
        """The mapping network."""
        return _load_part(self._weights, "mapping")

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op
    def style(self, seed: int) -> Float32[Tensor, "S"]:
        """The style of a seed, not far from the mean."""
        import numpy as np
        import torch

        mean = self.network.mean
        drawn = np.random.default_rng(seed % 2**64).standard_normal(len(mean), np.float32)
        with torch.inference_mode():
            return mean + TRUNCATION * (self.network(torch.from_numpy(drawn)) - mean)


class BandSynthesizer(Component):
    """Styles to pictures of half the size, as the four bands of a wavelet: one is the picture, three are its edges."""

    def __init__(self, weights: str) -> None:
        self._weights = weights

    @functools.cached_property
    def network(self) -> Any:
        """The synthesis network."""
        return _load_part(self._weights, "synthesis")

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op
    def bands(self, style: Float32[Tensor, "S"]) -> Float32[Tensor, "12 H W"]:
        """The bands of three colours. On a CPU, faces that share a forward gain nothing, and all wait for the last."""
        import torch

        with torch.inference_mode():
            return self.network(torch.as_tensor(style)[None])[0]


class WaveletUpsampler(Component):
    """Bands to pixels."""

    @op
    def to_image(self, bands: Float32[Tensor, "12 H W"], step: int, sizes: int) -> UInt8[Tensor, "X Y 3"]:
        """The picture of a step: of the last one whole, of each one before half as wide as of the next."""
        import torch
        from torch.nn.functional import avg_pool2d

        from mstar.models.faces.network import inverse_haar

        bands, halvings = torch.as_tensor(bands)[None], sizes - 1 - step
        low = bands[:, :3] / 2  # the mean of four pixels
        shown = avg_pool2d(low, 2 ** (halvings - 1)) if halvings else inverse_haar(bands)
        return ((shown[0].clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).contiguous()


def _load_part(weights: str, part: str) -> Any:
    try:
        from mstar.models.faces.network import load_part
    except ImportError as error:
        what = f"faces need torch and safetensors: {error}"
        raise LoadError(f"{what}\n  fix: install the torch that suits this machine, and safetensors") from error
    return load_part(weights, part)
