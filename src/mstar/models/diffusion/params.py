"""Generation parameters of diffusion models: request values merged with the defaults of the model."""

from __future__ import annotations

from dataclasses import dataclass

from mstar.errors import Unsupported
from mstar.requests import ImageRequest, VideoRequest


@dataclass(frozen=True, slots=True)
class DefaultParams:
    """Default parameters of a model, and its maximum side."""

    width: int
    height: int
    steps: int
    guidance: float
    max_side_px: int


@dataclass(frozen=True, slots=True)
class DiffusionParams:
    """Resolved parameters of one generation."""

    prompts: list[str]
    """The prompt, followed by the negative prompt if guidance is on."""
    latent_size: list[int]
    """Size of the latents: frames (video only), height and width."""
    steps: int
    guidance: float
    seed: int


def resolve_params(
    request: ImageRequest | VideoRequest, defaults: DefaultParams, scale: int, patch: int, *frames: int
) -> DiffusionParams:
    """Resolve a request for a model with `scale` pixels per latent and `patch` latents per patch.

    Raises Unsupported for a size that the model cannot generate.
    """
    width, height, unit = request.width or defaults.width, request.height or defaults.height, scale * patch
    if width % unit or height % unit or max(width, height) > defaults.max_side_px:
        raise Unsupported(
            f"unsupported size {width} x {height}: sides must be multiples of {unit} up to {defaults.max_side_px}\n"
            "  fix: request such a size"
        )
    guidance = request.guidance or defaults.guidance
    prompts = [request.prompt, request.negative_prompt] if guidance > 1 else [request.prompt]
    size = [*frames, height // scale, width // scale]
    return DiffusionParams(prompts, size, request.steps or defaults.steps, guidance, request.seed)


def count_latent_frames(request: VideoRequest, fps: float, max_frames: int, frames_per_latent: int) -> int:
    """Latent frames of a video, the first of which is one frame. Raises Unsupported if it is too long."""
    if (count := int(request.seconds * fps)) > max_frames:
        limit = max_frames / fps
        raise Unsupported(f"{request.seconds:g} s of video requested, maximum {limit:.1f} s\n  fix: request less")
    return count // frames_per_latent + 1
