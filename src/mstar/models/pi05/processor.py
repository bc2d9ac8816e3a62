"""pi0.5 processor: robot observations to model inputs, and model outputs to robot actions.

As in openpi, images are resized with padding, the state is discretized into prompt tokens, and values are normalized by
the quantiles of the checkpoint. Whether actions are absolute or relative is up to the robot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar import Component, Float32, Int64, Tensor, op
from mstar.errors import Unsupported, format_names
from mstar.models.pi05.checkpoint import Checkpoint
from mstar.requests import ActionRequest

if TYPE_CHECKING:
    import numpy as np

_MAX_PROMPT_TOKENS = 200
"""Maximum tokens of task and state."""
_STATE_BINS = 256
"""Bins per state value in the prompt."""
_DEFAULT_HORIZON = 10
"""Actions that are guided towards the previous chunk, unless the request sets `horizon`."""
_MIN_RANGE = 1e-6
"""Added to a quantile range, so that constant values do not divide by zero."""


class Processor(Component):
    """Preprocessing and postprocessing as the checkpoint defines them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the tokenizer."""
        _ = self._checkpoint.tokenizer

    def validate_observation(self, request: ActionRequest) -> None:
        """Reject an observation that does not match this robot: a wrong action is worse than none."""
        observation, (state, cameras) = request.observation, self._checkpoint.observation_names
        if not (state in observation and len(observation) > 1 and observation.keys() <= {state, *cameras}):
            names = format_names(sorted(observation))
            what = f"the observation has {names}, expected `{state}` and one or more of {format_names(cameras)}"
            raise Unsupported(f"{what}\n  fix: send these names")
        sizes = self._checkpoint.vector_sizes
        shapes = {state: [sizes.get("state", "numbers")], "leftover": ["actions", sizes["actions"]]}
        for name, value in {**observation, "leftover": request.leftover}.items():
            expected, kind = shapes.get(name, ["height", "width", 3]), "uint8" if name in cameras else "float"
            dtype, shape = str(getattr(value, "dtype", type(value).__name__)), [*getattr(value, "shape", ())]
            is_shape_valid = len(shape) == len(expected) and expected[-1] in ("numbers", shape[-1])
            if value is not None and not (is_shape_valid and dtype.startswith(kind)):
                what = f"`{name}` is {dtype}{shape}, expected {kind}{expected}"
                raise Unsupported(f"{what}\n  fix: send the dtype and shape of this robot")

    @op
    def process(self, request: ActionRequest) -> tuple[list[Float32[Tensor, "3 H W"]], Int64[Tensor, "T"]]:
        """Resize the images of the present cameras, and tokenize the task and the discretized state."""
        import numpy as np
        import torch

        observation, (state, cameras) = request.observation, self._checkpoint.observation_names
        side = self._checkpoint.image_size
        images = [_resize_with_pad(observation[camera], side) for camera in cameras if camera in observation]
        bins = np.digitize(self._normalize("state", observation[state]), np.linspace(-1, 1, _STATE_BINS + 1)[:-1]) - 1
        task = request.prompt.strip().replace("_", " ").replace("\n", " ")
        prompt = f"Task: {task}, State: {' '.join(map(str, bins))};\nAction: "
        tokens = self._checkpoint.tokenizer.encode(prompt, add_bos=True)
        if len(tokens) > _MAX_PROMPT_TOKENS:
            what = f"task and state have {len(tokens)} tokens, maximum {_MAX_PROMPT_TOKENS}"
            raise Unsupported(f"{what}\n  fix: shorten the task")
        return [torch.from_numpy(image).permute(2, 0, 1) / 255 * 2 - 1 for image in images], torch.tensor(tokens)

    @op
    def init_chunk(
        self, request: ActionRequest
    ) -> tuple[Float32[Tensor, "A D"], Float32[Tensor, "A D"], Float32[Tensor, "A"]]:
        """Return the noise, the rest of the previous chunk, and the guidance weight of each of its actions.

        The robot moves while a chunk is computed: its first `delay` actions will have been executed, so their weight is
        1. From there to the horizon the weight decreases to 0.
        """
        import torch

        count, size = self._checkpoint.chunk_shape
        noise = torch.randn(count, size, generator=torch.Generator().manual_seed(request.seed % 2**63))
        leftover, weights = torch.zeros(count, size), torch.zeros(count)
        if request.leftover is not None:
            normalized = torch.from_numpy(self._normalize("actions", request.leftover)[:count])
            leftover[: len(normalized), : normalized.shape[1]] = normalized
            end = min(request.horizon or _DEFAULT_HORIZON, len(normalized))
            start = min(request.delay, end)
            weights[:start] = 1
            weights[start:end] = torch.linspace(1, 0, end - start + 2)[1:-1]
        return noise, leftover, weights

    @op
    def unnormalize(self, actions: Float32[Tensor, "A D"]) -> Float32[Tensor, "A R"]:
        """Scale normalized actions to the units of the robot."""
        import torch

        if "actions" not in self._checkpoint.quantiles:
            return actions
        low, high = torch.tensor(self._checkpoint.quantiles["actions"], dtype=torch.float64)
        return ((actions[:, : len(low)] + 1) / 2 * (high - low + _MIN_RANGE) + low).float()

    def _normalize(self, key: str, values: np.ndarray) -> np.ndarray:
        """Scale robot values by their quantiles, mostly to -1 .. 1."""
        import numpy as np

        if key not in self._checkpoint.quantiles:
            return np.array(values)
        low, high = np.array(self._checkpoint.quantiles[key])
        return (values - low) / (high - low + _MIN_RANGE) * 2 - 1


def _resize_with_pad(pixels: np.ndarray, side: int) -> np.ndarray:
    """Resize an image to fit into a square, centered on black."""
    import numpy as np
    from PIL import Image

    image, ratio = Image.fromarray(pixels), max(pixels.shape[:2]) / side
    if image.size != (side, side):
        small = image.resize((int(image.width / ratio), int(image.height / ratio)), Image.Resampling.BILINEAR)
        image = Image.new("RGB", (side, side))
        image.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
    return np.array(image)
