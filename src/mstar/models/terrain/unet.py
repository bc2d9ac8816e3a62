"""Terrain components: a consistency U-Net that denoises height maps, and a relief shader.

The network maps a noisy height map and its noise level to the clean height map in one step, and the published sampler
calls it once on pure noise. Further steps here add back a smaller amount of the same noise, so the terrain hardly
changes: they serve as previews and do not improve it. Heights are on the network's scale from -1 to 1, nearly
logarithmic in meters.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float32, Tensor, UInt8, op
from mstar.nn.onnx import open_session
from mstar.nn.weights.sources import PackageFile

UNET = PackageFile(
    "adaptive-terrain-diffusion",
    "0.4.2",
    "terrain_diffusion/weights/terrain_consistency_unet_difficulty100.onnx",
    "95be54b4a39d58320e187a7ec533351c957f16a00be58773c86074828ee67887",
    "MIT",
)
SIDE_PX = 128
_MAX_SIGMA = 80.0
"""Initial noise level. The network was distilled at this level only."""
_MIN_SIGMA = 20.0
"""Minimum noise level. Below it the network leaves noise in its output."""
_MAX_HEIGHT_M = 22.16864
"""Maximum height in meters."""
_LINEAR_BELOW_M = 0.1
"""Height in meters below which the scale is linear."""
_PIXEL_M = 0.1
"""Width of a pixel in meters."""
_COLORS = ((40, 80, 60), (96, 138, 86), (206, 190, 120), (150, 112, 84), (250, 250, 250))
"""Colors from the lowest to the highest terrain: forest, meadow, sand, rock, snow."""


class Denoiser(Component):
    """Consistency U-Net."""

    weights = (UNET,)

    @functools.cached_property
    def _session(self) -> Any:
        return open_session("Terrain", UNET.path())

    def prepare(self) -> None:
        """Load the network."""
        _ = self._session

    @op
    def begin(self, seed: int, difficulty: int) -> tuple[Float32[Tensor, "128 128"], Float32[Tensor, "128 128"], int]:
        """Return the noise of a seed, an empty height map, and the difficulty, drawn from the seed if it is 0.

        Draws the same random numbers in the same order as the published sampler.
        """
        import numpy as np

        generator = np.random.default_rng(seed % 2**64)
        difficulty = difficulty or int(generator.integers(1, 101))
        noise: Any = generator.standard_normal((SIDE_PX, SIDE_PX), np.float32)
        return noise, np.zeros_like(noise), difficulty

    @op
    def denoise(
        self,
        land: Float32[Tensor, "128 128"],
        noise: Float32[Tensor, "128 128"],
        difficulty: int,
        steps_left: int,
        steps: int,
    ) -> tuple[Float32[Tensor, "128 128"], Float32[Tensor, "128 128"], int]:
        """Run one step. Returns the clean height map, the remaining noise, and the steps left.

        Not batched, because on a CPU batching gains nothing and adds latency.
        """
        import numpy as np

        sigma = np.array([_MAX_SIGMA * (_MIN_SIGMA / _MAX_SIGMA) ** (1 - steps_left / steps)], np.float32)
        label = np.array([(difficulty - 1) / 99], np.float32)
        noisy = np.asarray(land) + sigma * np.asarray(noise)
        inputs = {"noisy": noisy[None, None], "sigma": sigma, "difficulty": label}
        clean = self._session.run(["denoised"], inputs)[0][0, 0]
        return clean, (noisy - clean) / sigma, steps_left - 1


class Shader(Component):
    """Renders height maps. Has no weights."""

    @op
    def relief(
        self, land: Float32[Tensor, "128 128"], noise: Float32[Tensor, "128 128"], steps_left: int, steps: int
    ) -> UInt8[Tensor, "128 128 3"]:
        """Render a shaded relief, lit from the upper left.

        Remaining noise is drawn on top, much weaker than it is: at full strength it would hide the terrain.
        """
        import numpy as np

        heights = np.asarray(land) + np.float32((steps_left / steps) ** 3) * np.asarray(noise)
        lowest, highest = np.percentile(heights, (1, 99))
        levels = np.linspace(lowest, max(highest, lowest + 1e-6), len(_COLORS))
        colors = np.stack([np.interp(heights, levels, channel) for channel in zip(*_COLORS, strict=True)], -1)
        return (colors * (0.35 + 0.9 * _hillshade(heights))[..., None]).clip(0, 255).astype(np.uint8)


def _hillshade(land: Any) -> Any:
    """Return the brightness of each pixel, from 0 to 1, by its slope."""
    import numpy as np

    scale = np.arcsinh(_MAX_HEIGHT_M / _LINEAR_BELOW_M)
    meters = _LINEAR_BELOW_M * np.sinh(np.clip((land + 1) / 2, 0, 1) * scale)
    down, right = np.gradient(meters, _PIXEL_M)
    up = np.sqrt(0.5)  # the sun is at 45 degrees
    return np.clip((up + (down + right) / 2) / np.sqrt(1 + down**2 + right**2), 0, 1)
