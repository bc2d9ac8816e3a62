"""Emissions: what a client receives, with what turns their size into seconds where they have a clock."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Emission:
    """A value for the client. Values of one kind arrive in order; kinds are not ordered among each other."""

    value: Any

    @property
    def clock(self) -> tuple[tuple[str, int | float], ...]:
        """The fields beside the value, such as (("rate", 24000),)."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "value")


@dataclass(frozen=True, slots=True, eq=False)
class Text(Emission):
    """Tokens of text."""


@dataclass(frozen=True, slots=True, eq=False)
class Audio(Emission):
    """Samples of sound at `rate` samples a second."""

    rate: int


@dataclass(frozen=True, slots=True, eq=False)
class Image(Emission):
    """A picture, or a partial one that a later one replaces."""


@dataclass(frozen=True, slots=True, eq=False)
class Video(Emission):
    """Frames at `fps` frames a second."""

    fps: float


@dataclass(frozen=True, slots=True, eq=False)
class Action(Emission):
    """Robot actions, `rate` of them a second."""

    rate: float


@dataclass(frozen=True, slots=True, eq=False)
class Latents(Emission):
    """A model's inner view of the world."""


KINDS: dict[str, type[Emission]] = {cls.__name__: cls for cls in (Text, Audio, Image, Video, Action, Latents)}
"""Every kind of emission by its name in a graph."""
