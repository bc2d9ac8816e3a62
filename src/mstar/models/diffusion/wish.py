"""What a request wants made, with nothing left open. What is then done is not known here."""

from __future__ import annotations

from dataclasses import dataclass

from mstar.asks import Drawing, Filming
from mstar.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Usual:
    """What a request gets that says nothing of it, and how wide or high a picture may be."""

    width: int
    height: int
    steps: int
    guidance: float
    most: int


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be made."""

    prompts: list[str]
    """What it is guided towards and, if it is guided, what away from."""
    size: list[int]
    """Of its latents: height and width, and of a film frames before them."""
    steps: int
    guidance: float
    seed: int


def wished(request: Drawing | Filming, usual: Usual, scale: int, patch: int, *frames: int) -> Wish:
    """What a request wants of a model whose latents are so much smaller than pixels, and seen in patches."""
    width, height, unit = request.width or usual.width, request.height or usual.height, scale * patch
    if width % unit or height % unit or max(width, height) > usual.most:
        allowed = f"multiples of {unit} pixels wide and high, {usual.most} at most"
        what = f"its pictures are {allowed}, and not {width} x {height}"
        raise Unsupported(f"{what}\n  fix: ask for such a size")
    guidance = request.guidance or usual.guidance
    prompts = [request.prompt, request.negative] if guidance > 1 else [request.prompt]
    size = [*frames, height // scale, width // scale]
    return Wish(prompts, size, request.steps or usual.steps, guidance, request.seed)
