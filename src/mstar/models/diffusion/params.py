"""What a request wants made, with nothing left open. What is then done is not known here."""

from __future__ import annotations

from dataclasses import dataclass

from mstar.errors import Unsupported
from mstar.requests import ImageRequest, VideoRequest


@dataclass(frozen=True, slots=True)
class DefaultParams:
    """What a request gets that says nothing of it, and how wide or high a picture may be."""

    width: int
    height: int
    steps: int
    guidance: float
    max_side_px: int


@dataclass(frozen=True, slots=True)
class DiffusionParams:
    """What is to be made."""

    prompts: list[str]
    """What it is guided towards and, if it is guided, what away from."""
    latent_size: list[int]
    """Of its latents: height and width, and of a film frames before them."""
    steps: int
    guidance: float
    seed: int


def resolve_params(
    request: ImageRequest | VideoRequest, defaults: DefaultParams, scale: int, patch: int, *frames: int
) -> DiffusionParams:
    """What a request wants of a model whose latents are so much smaller than pixels, and seen in patches."""
    width, height, unit = request.width or defaults.width, request.height or defaults.height, scale * patch
    if width % unit or height % unit or max(width, height) > defaults.max_side_px:
        allowed = f"multiples of {unit} pixels wide and high, {defaults.max_side_px} at most"
        what = f"its pictures are {allowed}, and not {width} x {height}"
        raise Unsupported(f"{what}\n  fix: ask for such a size")
    guidance = request.guidance or defaults.guidance
    prompts = [request.prompt, request.negative_prompt] if guidance > 1 else [request.prompt]
    size = [*frames, height // scale, width // scale]
    return DiffusionParams(prompts, size, request.steps or defaults.steps, guidance, request.seed)
