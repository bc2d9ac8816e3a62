"""The reader of pi0.5: an observation of a robot as what its networks were trained with, and their numbers as actions.

As openpi does it: pictures are made to fit with their sides in proportion, the pose is told in words, and numbers are
scaled by the quantiles that a checkpoint has. Whether actions are poses or differences is the robot's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar import Component, Float32, Int64, Tensor, op
from mstar.errors import Unsupported, format_names
from mstar.models.pi05.checkpoint import Checkpoint
from mstar.requests import ActionRequest

if TYPE_CHECKING:
    import numpy as np

_MAX_PROMPT_TOKENS, _STATE_BINS, _DEFAULT_HORIZON = 200, 256, 10
"""How many tokens a task and a pose may have, how many words there are for a number of the pose, and for how many
actions a chunk is pulled to the one before where a request does not say."""
_MIN_RANGE = 1e-6
"""What numbers that are always equal are divided by."""


class Processor(Component):
    """What a checkpoint says of cameras, pose, words and scales."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the words."""
        _ = self._checkpoint.tokenizer

    def validate_observation(self, request: ActionRequest) -> None:
        """Refuse what is not of this robot: an arm that moves by a guess is worse than one at rest."""
        seen, (pose, cameras) = request.observation, self._checkpoint.observation_names
        if not (pose in seen and len(seen) > 1 and seen.keys() <= {pose, *cameras}):
            what = f"an observation has {format_names(sorted(seen))}, not `{pose}` and one or more of {format_names(cameras)}"
            raise Unsupported(f"{what}\n  fix: send these names")
        sizes = self._checkpoint.vector_sizes
        told = {pose: [sizes.get("state", "numbers")], "leftover": ["actions", sizes["actions"]]}
        for name, value in {**seen, "leftover": request.leftover}.items():
            wanted, kind = told.get(name, ["height", "width", 3]), "uint8" if name in cameras else "float"
            found, shape = str(getattr(value, "dtype", type(value).__name__)), [*getattr(value, "shape", ())]
            is_whole = len(shape) == len(wanted) and wanted[-1] in ("numbers", shape[-1])
            if value is not None and not (is_whole and found.startswith(kind)):
                what = f"`{name}` is {found}{shape}, not {kind}{wanted}"
                raise Unsupported(f"{what}\n  fix: send what this robot has")

    @op
    def process(self, request: ActionRequest) -> tuple[list[Float32[Tensor, "3 H W"]], Int64[Tensor, "T"]]:
        """What the cameras see that are there; the task and the pose in words."""
        import numpy as np
        import torch

        seen, (name, cameras) = request.observation, self._checkpoint.observation_names
        pictures = [_resize_with_pad(seen[camera], self._checkpoint.image_size) for camera in cameras if camera in seen]
        pose = np.digitize(self._normalize("state", seen[name]), np.linspace(-1, 1, _STATE_BINS + 1)[:-1]) - 1
        task = request.prompt.strip().replace("_", " ").replace("\n", " ")
        told = f"Task: {task}, State: {' '.join(map(str, pose))};\nAction: "
        tokens = self._checkpoint.tokenizer.encode(told, add_bos=True)
        if len(tokens) > _MAX_PROMPT_TOKENS:
            what = f"task and pose have {len(tokens)} tokens, and it reads {_MAX_PROMPT_TOKENS}"
            raise Unsupported(f"{what}\n  fix: say the task in fewer words")
        return [torch.from_numpy(one).permute(2, 0, 1) / 255 * 2 - 1 for one in pictures], torch.tensor(tokens)

    @op
    def init_chunk(
        self, request: ActionRequest
    ) -> tuple[Float32[Tensor, "A D"], Float32[Tensor, "A D"], Float32[Tensor, "A"]]:
        """Noise, what is left of the chunk before, and how much each action of that is trusted.

        The robot goes on while a chunk is made: its first `delay` actions will have been carried out, and are trusted
        fully; those from there to the horizon less and less.
        """
        import torch

        count, size = self._checkpoint.chunk_shape
        noise = torch.randn(count, size, generator=torch.Generator().manual_seed(request.seed % 2**63))
        left, trust = torch.zeros(count, size), torch.zeros(count)
        if request.leftover is not None:
            given = torch.from_numpy(self._normalize("actions", request.leftover)[:count])
            left[: len(given), : given.shape[1]] = given
            end = min(request.horizon or _DEFAULT_HORIZON, len(given))
            start = min(request.delay, end)
            trust[:start] = 1
            trust[start:end] = torch.linspace(1, 0, end - start + 2)[1:-1]
        return noise, left, trust

    @op
    def unnormalize(self, actions: Float32[Tensor, "A D"]) -> Float32[Tensor, "A R"]:
        """Actions as the robot has them."""
        import torch

        if "actions" not in self._checkpoint.quantiles:
            return actions
        low, high = torch.tensor(self._checkpoint.quantiles["actions"], dtype=torch.float64)
        return ((actions[:, : len(low)] + 1) / 2 * (high - low + _MIN_RANGE) + low).float()

    def _normalize(self, key: str, numbers: np.ndarray) -> np.ndarray:
        """Numbers of a robot as the network has them: nearly all between -1 and 1."""
        import numpy as np

        if key not in self._checkpoint.quantiles:
            return np.array(numbers)
        low, high = np.array(self._checkpoint.quantiles[key])
        return (numbers - low) / (high - low + _MIN_RANGE) * 2 - 1


def _resize_with_pad(picture: np.ndarray, side: int) -> np.ndarray:
    """A picture in the middle of a square, as large as it fits, with black around it."""
    import numpy as np
    from PIL import Image

    image, ratio = Image.fromarray(picture), max(picture.shape[:2]) / side
    if image.size != (side, side):
        small = image.resize((int(image.width / ratio), int(image.height / ratio)), Image.Resampling.BILINEAR)
        image = Image.new("RGB", (side, side))
        image.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
    return np.array(image)
