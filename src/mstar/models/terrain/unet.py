"""The parts that make land of noise, and pictures of land.

The network is a consistency U-Net: it is shown land under noise, is told how much noise that is, and says what land it
is, in one go. The publisher's sampler asks it once, with noise alone. Here it may be asked again: the land that it
found is put under what is then the noise, but less of it, and no new noise is drawn. So the land stays nearly the same:
more steps show how it comes to be, and make it a little rougher, not better. Heights are on the network's scale, from
-1 to 1, which is nearly a logarithm of metres. What a request may ask for is not known here.
"""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float32, Tensor, UInt8, op
from mstar.errors import LoadError
from mstar.nn.weights.sources import PackageFile

UNET = PackageFile(
    "adaptive-terrain-diffusion",
    "0.4.2",
    "terrain_diffusion/weights/terrain_consistency_unet_difficulty100.onnx",
    "95be54b4a39d58320e187a7ec533351c957f16a00be58773c86074828ee67887",
    "MIT",
)
SIDE_PX = 128
_MAX_SIGMA, _MIN_SIGMA = 80.0, 20.0
"""How strong the noise is at first, and what it never falls to: the network was distilled at the first alone, and with
less than the second it leaves ever more of the noise in what it says."""
_MAX_HEIGHT_M, _LINEAR_BELOW_M, _PIXEL_M = 22.16864, 0.1, 0.1
"""The highest land in metres, below what height the network's scale is even, and how wide a pixel is."""
_COLOURS = ((40, 80, 60), (96, 138, 86), (206, 190, 120), (150, 112, 84), (250, 250, 250))
"""From the lowest to the highest: forest, meadow, sand, rock, snow."""


class Denoiser(Component):
    """The U-Net."""

    weights = (UNET,)

    @functools.cached_property
    def _session(self) -> Any:
        path = UNET.path()
        try:
            import onnxruntime
        except ImportError as error:
            raise LoadError(f"making land needs a library: {error}\n  fix: pip install onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def prepare(self) -> None:
        """Load the network."""
        _ = self._session

    @op
    def begin(self, seed: int, difficulty: int) -> tuple[Float32[Tensor, "128 128"], Float32[Tensor, "128 128"], int]:
        """The noise of a seed, land of which nothing is known, and its difficulty, which the seed chooses if it is 0.

        These are the numbers that the publisher's sampler draws, in its order.
        """
        import numpy as np

        drawn = np.random.default_rng(seed % 2**64)
        difficulty = difficulty or int(drawn.integers(1, 101))
        noise: Any = drawn.standard_normal((SIDE_PX, SIDE_PX), np.float32)
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
        """The land under the noise of this step, the noise that was over it, and how many steps are left.

        On a CPU, lands that share a run gain nothing, and all wait for the last.
        """
        import numpy as np

        sigma = np.array([_MAX_SIGMA * (_MIN_SIGMA / _MAX_SIGMA) ** (1 - steps_left / steps)], np.float32)
        label = np.array([(difficulty - 1) / 99], np.float32)
        noisy = np.asarray(land) + sigma * np.asarray(noise)
        given = {"noisy": noisy[None, None], "sigma": sigma, "difficulty": label}
        found = self._session.run(["denoised"], given)[0][0, 0]
        return found, (noisy - found) / sigma, steps_left - 1


class Shader(Component):
    """Land to pixels. It needs no weights."""

    @op
    def relief(
        self, land: Float32[Tensor, "128 128"], noise: Float32[Tensor, "128 128"], steps_left: int, steps: int
    ) -> UInt8[Tensor, "128 128 3"]:
        """Land in colours of its heights, in light from the upper left.

        Noise that is left lies on it, drawn far weaker than it is: nothing else would be seen before the last step.
        """
        import numpy as np

        seen = np.asarray(land) + np.float32((steps_left / steps) ** 3) * np.asarray(noise)
        lowest, highest = np.percentile(seen, (1, 99))
        heights = np.linspace(lowest, max(highest, lowest + 1e-6), len(_COLOURS))
        colours = np.stack([np.interp(seen, heights, colour) for colour in zip(*_COLOURS, strict=True)], -1)
        return (colours * (0.35 + 0.9 * _hillshade(seen))[..., None]).clip(0, 255).astype(np.uint8)


def _hillshade(land: Any) -> Any:
    """How bright each place is, between 0 and 1, by the slope there."""
    import numpy as np

    scale = np.arcsinh(_MAX_HEIGHT_M / _LINEAR_BELOW_M)
    metres = _LINEAR_BELOW_M * np.sinh(np.clip((land + 1) / 2, 0, 1) * scale)
    down, right = np.gradient(metres, _PIXEL_M)
    up = np.sqrt(0.5)  # the sun is half way up
    return np.clip((up + (down + right) / 2) / np.sqrt(1 + down**2 + right**2), 0, 1)
