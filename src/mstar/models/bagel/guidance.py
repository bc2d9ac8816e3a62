"""Classifier-free guidance of BAGEL image generation: timesteps, guidance by text and by image, and Euler steps.

1. Guide away from the velocity without text, then from the velocity without images.
2. Renormalize: the guided velocity is not longer than the unguided one.
3. Advance the latents by one step.

For a prompt without images the velocity without images equals the main one and is not computed. No weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from mstar import ONE_ROW, Component, Float32, Layout, Tensor, op, ragged, rows
from mstar.errors import Unsupported
from mstar.models.bagel.checkpoint import Checkpoint
from mstar.models.bagel.noise import draw_noise
from mstar.requests import ImageRequest

if TYPE_CHECKING:
    import torch

_SHIFT = 3.0
"""Timestep shift of the schedule."""
_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class GuidanceParams:
    """Default generation parameters."""

    steps: int = 49
    text_scale: float = 4.0
    """Guidance scale of the text. 1 disables it."""
    image_scale: float = 1.5
    """Guidance scale of source images. 1 disables it."""
    interval: tuple[float, float] = (0.4, 1.0)
    """Times with guidance: above the first, up to the second. Denoising runs from 1 to 0."""
    renorm: Literal["global", "channel", "text_channel"] = "global"
    """Scope of the norm: all values, each token, or each token before image guidance."""
    renorm_min: float = 0.0
    """Minimum factor of the renormalization."""


DEFAULT_GUIDANCE = GuidanceParams()


@dataclass(frozen=True, slots=True)
class FlowStep:
    """One step of the schedule."""

    step: int
    time: float
    is_text_guided: bool
    """Whether the step needs the velocity without text."""
    is_image_guided: bool
    """Whether the step also needs the velocity without images."""


@dataclass(frozen=True, slots=True)
class DrawParams:
    """Resolved parameters of one image."""

    guidance: GuidanceParams
    width: int
    height: int
    """In pixels. 0 selects the maximum."""
    seed: int
    spans: tuple[int, ...]
    """Denoising steps before each emitted image."""
    is_text_only: bool
    """Whether the prompt has no images, so that image guidance is skipped."""

    @classmethod
    def from_request(
        cls, request: ImageRequest, guidance: GuidanceParams, size: tuple[int, int], *, is_text_only: bool
    ) -> DrawParams:
        """Merge a request with the default parameters and the size of its last source image."""
        merged = replace(
            guidance, steps=request.steps or guidance.steps, text_scale=request.guidance or guidance.text_scale
        )
        return cls(
            merged,
            request.width or size[0],
            request.height or size[1],
            request.seed,
            tuple(request.steps_per_image(merged.steps)),
            is_text_only,
        )

    def time_at(self, step: int) -> float:
        """Return the time of a step. The time after the last step is 0."""
        u = 1 - step / self.guidance.steps
        return _SHIFT * u / (1 + (_SHIFT - 1) * u)

    def flow_step(self, step: int) -> FlowStep:
        """Return the time and the guidance of a step."""
        (low, high), time = self.guidance.interval, self.time_at(step)
        by_text = self.guidance.text_scale > 1 and low < time <= high
        return FlowStep(step, time, by_text, by_text and self.guidance.image_scale > 1 and not self.is_text_only)


class Guidance(Component):
    """Guidance arithmetic. Has no weights."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @op
    def begin(self, params: DrawParams) -> tuple[Float32[Tensor, "N C"], FlowStep, int, list[int], int]:
        """Return the noise, the first step, the tokens per row, the steps per emitted image, and the image count."""
        sizes = self._checkpoint.sizes
        max_side = sizes.cell * sizes.cells
        sides = height, width = params.height or max_side, params.width or max_side
        if any(side < sizes.cell or side > max_side or side % sizes.cell for side in sides):
            raise Unsupported(
                f"BAGEL cannot generate images of {width} x {height} pixels\n"
                f"  fix: use sides that are multiples of {sizes.cell}, up to {max_side}"
            )
        rows, columns = (side // sizes.cell for side in sides)
        x = draw_noise((rows * columns, sizes.block**2 * sizes.channels), params.seed, 0).to(self.device or "cpu")
        return x, params.flow_step(0), columns, list(params.spans), len(params.spans)

    @op(batch=ragged("N"))
    def advance(  # noqa: PLR0913, PLR0917 - each flow is a tensor of its own
        self,
        x: Float32[Tensor, "N C"],
        v: Float32[Tensor, "N C"],
        no_text: Float32[Tensor, "N C"],
        no_image: Float32[Tensor, "N C"],
        params: DrawParams,
        flow_step: FlowStep,
        layout: Layout = ONE_ROW,
    ) -> tuple[Float32[Tensor, "N C"], Float32[Tensor, "N C"], FlowStep]:
        """Advance the latents by one step. Returns the new latents, a preview of the final latents, and the next step.

        Velocities that a step does not need can hold any values.
        """
        import torch

        moved, clean, next_steps = list[Tensor](), list[Tensor](), list[FlowStep]()
        parts = (tensor.split(layout.lengths) for tensor in (x, v, no_text, no_image))
        for latents, flow, vt, vi, row, step in zip(*parts, rows(params), rows(flow_step), strict=True):
            velocity = flow
            if step.is_text_guided:
                velocity = _apply_guidance(flow, vt, flow if row.is_text_only else vi, row.guidance)
            next_steps.append(row.flow_step(step.step + 1))
            moved.append(latents - velocity * (step.time - next_steps[-1].time))
            clean.append(latents - velocity * step.time)
        return torch.cat(moved), torch.cat(clean), cast("Any", next_steps)


def _apply_guidance(
    v: torch.Tensor, no_text: torch.Tensor, no_image: torch.Tensor, params: GuidanceParams
) -> torch.Tensor:
    """Return the guided velocity of one request."""
    guided = no_text + params.text_scale * (v - no_text)
    if params.renorm == "text_channel":
        guided = _renormalize(guided, v, params)
    if params.image_scale > 1:
        guided = no_image + params.image_scale * (guided - no_image)
    return guided if params.renorm == "text_channel" else _renormalize(guided, v, params)


def _renormalize(guided: torch.Tensor, v: torch.Tensor, params: GuidanceParams) -> torch.Tensor:
    axis = None if params.renorm == "global" else -1
    norm, guided_norm = (velocity.norm(dim=axis, keepdim=axis is not None) for velocity in (v, guided))
    return guided * (norm / (guided_norm + _EPSILON)).clamp(params.renorm_min, 1)
