"""Types that the serialization tests send between processes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Plain:
    """An ordinary dataclass."""

    it: Any
    more: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen dataclass whose `__post_init__` rejects some states."""

    it: Any
    limit: int = 0

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError("no __init__ runs when a value is restored")

    @dataclass(frozen=True)
    class Inner:
        """A class in a class."""

        it: Any


class Colour(enum.Enum):
    """Members with values of several types."""

    RED = 1
    BLUE = "blue"


class Number(enum.IntEnum):
    """An enum that is also an int."""

    ONE = 1


class Bits(enum.Flag):
    """Members that combine."""

    A = 1
    B = 2
    C = 4


@dataclass
class Listed(list):
    """A dataclass with a builtin base class."""

    it: Any = None
