"""What is around the flow of BAGEL: its moments, its guidance by text and by pictures, and its steps. No weights.

Guidance goes away from what a picture would be without the text, and from what it would be without the pictures; then
it is made no longer than the flow under the whole prompt was (renorm). Where a request's prompt has no picture, the
latter is the flow itself, and is not computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from mstar import ONE_ROW, Component, Float32, Layout, Tensor, op, ragged, rows
from mstar.asks import Drawing
from mstar.errors import Unsupported
from mstar.models.bagel.checkpoint import Checkpoint
from mstar.models.bagel.noise import noise

if TYPE_CHECKING:
    import torch

_SHIFT, _TINY = 3.0, 1e-8


@dataclass(frozen=True, slots=True)
class Manner:
    """How pictures are drawn where a request does not say."""

    steps: int = 49
    text: float = 4.0
    """How far to go away from no text; 1 is not at all."""
    image: float = 1.5
    """How far to go away from no picture; 1 is not at all."""
    interval: tuple[float, float] = (0.4, 1.0)
    """The moments that have guidance, from above the first up to the second. What is drawn goes from 1 to 0."""
    renorm: Literal["global", "channel", "text_channel"] = "global"
    """Over what lengths are compared: all numbers, those of each token, or of each token before guidance by picture."""
    renorm_min: float = 0.0
    """Guidance is made shorter at most by this factor."""


PLAIN = Manner()


@dataclass(frozen=True, slots=True)
class Moment:
    """A step on the way."""

    step: int
    time: float
    by_text: bool
    """Whether it has guidance, for which it needs the flow without text."""
    by_image: bool
    """Whether it needs the flow without pictures too."""


@dataclass(frozen=True, slots=True)
class Canvas:
    """What is to be drawn."""

    manner: Manner
    width: int
    height: int
    """In pixels; 0 is as many as there may be."""
    seed: int
    spans: tuple[int, ...]
    """How many steps come before each picture that is shown."""
    is_alike: bool
    """Whether the prompt without its pictures is the prompt."""

    @classmethod
    def of(cls, ask: Drawing, manner: Manner, size: tuple[int, int], *, is_alike: bool) -> Canvas:
        """What a request wants, where it does not say in a manner and of a size."""
        own = replace(manner, steps=ask.steps or manner.steps, text=ask.guidance or manner.text)
        return cls(own, ask.width or size[0], ask.height or size[1], ask.seed, tuple(ask.spans(own.steps)), is_alike)

    def time(self, step: int) -> float:
        """The moment of a step; the one behind the last step is 0."""
        u = 1 - step / self.manner.steps
        return _SHIFT * u / (1 + (_SHIFT - 1) * u)

    def at(self, step: int) -> Moment:
        """What a step needs."""
        (low, high), time = self.manner.interval, self.time(step)
        by_text = self.manner.text > 1 and low < time <= high
        return Moment(step, time, by_text, by_text and self.manner.image > 1 and not self.is_alike)


class Guidance(Component):
    """The arithmetic."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @op
    def begin(self, canvas: Canvas) -> tuple[Float32[Tensor, "N C"], Moment, int, list[int], int]:
        """Noise, when it begins, how many tokens are in a row; how many steps lead to each picture, and their count."""
        sizes = self._checkpoint.sizes
        longest = sizes.cell * sizes.cells
        sides = height, width = canvas.height or longest, canvas.width or longest
        if any(side < sizes.cell or side > longest or side % sizes.cell for side in sides):
            what = f"it draws no pictures of {width} x {height} pixels"
            fix = f"ask for sides that are multiples of {sizes.cell}, up to {longest}"
            raise Unsupported(f"{what}\n  fix: {fix}")
        rows, columns = (side // sizes.cell for side in sides)
        x = noise((rows * columns, sizes.block**2 * sizes.channels), canvas.seed, 0)
        return x, canvas.at(0), columns, list(canvas.spans), len(canvas.spans)

    @op(batch=ragged("N"))
    def advance(  # noqa: PLR0913, PLR0917 - each flow is a tensor of its own
        self,
        x: Float32[Tensor, "N C"],
        v: Float32[Tensor, "N C"],
        no_text: Float32[Tensor, "N C"],
        no_image: Float32[Tensor, "N C"],
        canvas: Canvas,
        now: Moment,
        layout: Layout = ONE_ROW,
    ) -> tuple[Float32[Tensor, "N C"], Float32[Tensor, "N C"], Moment]:
        """What is drawn after a step, what it would be at the end if it went straight on, and the next step.

        What a step does not need may be anything.
        """
        import torch

        moved, clean, then = list[Tensor](), list[Tensor](), list[Moment]()
        parts = (one.split(layout.lengths) for one in (x, v, no_text, no_image))
        for own, flow, vt, vi, wish, moment in zip(*parts, rows(canvas), rows(now), strict=True):
            towards = _guided(flow, vt, flow if wish.is_alike else vi, wish.manner) if moment.by_text else flow
            then.append(wish.at(moment.step + 1))
            moved.append(own - towards * (moment.time - then[-1].time))
            clean.append(own - towards * moment.time)
        return torch.cat(moved), torch.cat(clean), cast("Any", then)


def _guided(v: torch.Tensor, no_text: torch.Tensor, no_image: torch.Tensor, manner: Manner) -> torch.Tensor:
    """The flow of a step with guidance."""
    guided = no_text + manner.text * (v - no_text)
    if manner.renorm == "text_channel":
        guided = _shortened(guided, v, manner)
    if manner.image > 1:
        guided = no_image + manner.image * (guided - no_image)
    return guided if manner.renorm == "text_channel" else _shortened(guided, v, manner)


def _shortened(guided: torch.Tensor, v: torch.Tensor, manner: Manner) -> torch.Tensor:
    axis = None if manner.renorm == "global" else -1
    long, longer = (one.norm(dim=axis, keepdim=axis is not None) for one in (v, guided))
    return guided * (long / (longer + _TINY)).clamp(manner.renorm_min, 1)
