"""What is around the flow of BAGEL: its moments, its guidance by text and by pictures, and its steps. No weights.

Guidance goes away from what a picture would be without the text, and from what it would be without the pictures; then
it is made no longer than the flow under the whole prompt was (renorm). Where a request's prompt has no picture, the
latter is the flow itself, and is not computed twice.
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

_SHIFT, _EPSILON = 3.0, 1e-8


@dataclass(frozen=True, slots=True)
class GuidanceParams:
    """How pictures are drawn where a request does not say."""

    steps: int = 49
    text_scale: float = 4.0
    """How far to go away from no text; 1 is not at all."""
    image_scale: float = 1.5
    """How far to go away from no picture; 1 is not at all."""
    interval: tuple[float, float] = (0.4, 1.0)
    """The moments that have guidance, from above the first up to the second. What is drawn goes from 1 to 0."""
    renorm: Literal["global", "channel", "text_channel"] = "global"
    """Over what lengths are compared: all numbers, those of each token, or of each token before guidance by picture."""
    renorm_min: float = 0.0
    """Guidance is made shorter at most by this factor."""


DEFAULT_GUIDANCE = GuidanceParams()


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A step on the way."""

    step: int
    time: float
    is_text_guided: bool
    """Whether it has guidance, for which it needs the flow without text."""
    is_image_guided: bool
    """Whether it needs the flow without pictures too."""


@dataclass(frozen=True, slots=True)
class DrawParams:
    """What is to be drawn."""

    guidance: GuidanceParams
    width: int
    height: int
    """In pixels; 0 is as many as there may be."""
    seed: int
    spans: tuple[int, ...]
    """How many steps come before each picture that is shown."""
    is_text_only: bool
    """Whether the prompt without its pictures is the prompt."""

    @classmethod
    def from_request(
        cls, request: ImageRequest, guidance: GuidanceParams, size: tuple[int, int], *, is_text_only: bool
    ) -> DrawParams:
        """What a request wants, where it does not say in a manner and of a size."""
        own = replace(
            guidance, steps=request.steps or guidance.steps, text_scale=request.guidance or guidance.text_scale
        )
        return cls(
            own,
            request.width or size[0],
            request.height or size[1],
            request.seed,
            tuple(request.steps_per_image(own.steps)),
            is_text_only,
        )

    def time_at(self, step: int) -> float:
        """The moment of a step; the one behind the last step is 0."""
        u = 1 - step / self.guidance.steps
        return _SHIFT * u / (1 + (_SHIFT - 1) * u)

    def flow_step(self, step: int) -> FlowStep:
        """What a step needs."""
        (low, high), time = self.guidance.interval, self.time_at(step)
        by_text = self.guidance.text_scale > 1 and low < time <= high
        return FlowStep(step, time, by_text, by_text and self.guidance.image_scale > 1 and not self.is_text_only)


class Guidance(Component):
    """The arithmetic."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @op
    def begin(self, params: DrawParams) -> tuple[Float32[Tensor, "N C"], FlowStep, int, list[int], int]:
        """Noise, when it begins, how many tokens are in a row; how many steps lead to each picture, and their count."""
        sizes = self._checkpoint.sizes
        longest = sizes.cell * sizes.cells
        sides = height, width = params.height or longest, params.width or longest
        if any(side < sizes.cell or side > longest or side % sizes.cell for side in sides):
            what = f"it draws no pictures of {width} x {height} pixels"
            fix = f"ask for sides that are multiples of {sizes.cell}, up to {longest}"
            raise Unsupported(f"{what}\n  fix: {fix}")
        rows, columns = (side // sizes.cell for side in sides)
        x = draw_noise((rows * columns, sizes.block**2 * sizes.channels), params.seed, 0)
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
        """What is drawn after a step, what it would be at the end if it went straight on, and the next step.

        What a step does not need may be anything.
        """
        import torch

        moved, clean, then = list[Tensor](), list[Tensor](), list[FlowStep]()
        parts = (one.split(layout.lengths) for one in (x, v, no_text, no_image))
        for own, flow, vt, vi, wish, moment in zip(*parts, rows(params), rows(flow_step), strict=True):
            towards = (
                _apply_guidance(flow, vt, flow if wish.is_text_only else vi, wish.guidance)
                if moment.is_text_guided
                else flow
            )
            then.append(wish.flow_step(moment.step + 1))
            moved.append(own - towards * (moment.time - then[-1].time))
            clean.append(own - towards * moment.time)
        return torch.cat(moved), torch.cat(clean), cast("Any", then)


def _apply_guidance(
    v: torch.Tensor, no_text: torch.Tensor, no_image: torch.Tensor, params: GuidanceParams
) -> torch.Tensor:
    """The flow of a step with guidance."""
    guided = no_text + params.text_scale * (v - no_text)
    if params.renorm == "text_channel":
        guided = _renormalize(guided, v, params)
    if params.image_scale > 1:
        guided = no_image + params.image_scale * (guided - no_image)
    return guided if params.renorm == "text_channel" else _renormalize(guided, v, params)


def _renormalize(guided: torch.Tensor, v: torch.Tensor, params: GuidanceParams) -> torch.Tensor:
    axis = None if params.renorm == "global" else -1
    long, longer = (one.norm(dim=axis, keepdim=axis is not None) for one in (v, guided))
    return guided * (long / (longer + _EPSILON)).clamp(params.renorm_min, 1)
