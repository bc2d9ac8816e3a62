"""Emissions: the outputs that a walk yields to the client, with their sample or frame rate."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Emission:
    """An output for the client. Emissions of one kind arrive in order; different kinds have no order."""

    value: Any

    @property
    def clock(self) -> tuple[tuple[str, int | float], ...]:
        """The fields other than the value, for example (("rate", 24000),)."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "value")


@dataclass(frozen=True, slots=True, eq=False)
class Text(Emission):
    """Text as token ids or a string."""


@dataclass(frozen=True, slots=True, eq=False)
class Audio(Emission):
    """Audio at `rate` samples per second."""

    rate: int


@dataclass(frozen=True, slots=True, eq=False)
class WordTimestamps(Emission):
    """A list of `mstar.requests.WordTimestamp`: when the words of the response are spoken in its Audio emissions."""


@dataclass(frozen=True, slots=True, eq=False)
class Image(Emission):
    """An image, or a partial image that a later one replaces."""


@dataclass(frozen=True, slots=True, eq=False)
class Video(Emission):
    """Video at `fps` frames per second."""

    fps: float


@dataclass(frozen=True, slots=True, eq=False)
class Action(Emission):
    """Robot actions at `rate` per second."""

    rate: float


@dataclass(frozen=True, slots=True, eq=False)
class Latents(Emission):
    """Latent representation, for example of a world model."""


KINDS: dict[str, type[Emission]] = {
    cls.__name__: cls for cls in (Text, Audio, WordTimestamps, Image, Video, Action, Latents)
}
"""Emission classes by their name in a graph."""
