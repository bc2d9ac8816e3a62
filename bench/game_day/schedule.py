"""Fault schedule of a game day: which fault starts when, on what, and for how long. It follows from the seed alone.

1. The load is divided into slots of equal length, at least `MIN_SLOT_S` each. A slot has one fault.
2. All faults are shuffled, and shuffled again for each further round.
3. A fault starts at a random time in the first fifth of its slot, and lasts at most as long as its kind says.

With few slots a seed injects a part of the faults, and other seeds inject the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

MIN_SLOT_S = 5.5
"""Seconds of the shortest slot: a fault, and the recovery of a toy model."""
MAX_SLOT_S = 25.0
"""Seconds of the longest slot; a longer load has more rounds."""
MAX_JITTER = 0.2
"""Latest start within a slot, relative to its length."""


@dataclass(frozen=True)
class FaultSpec:
    """Bounds within which a fault is drawn."""

    name: str
    targets: Sequence[str]
    """Processes or models, of which one is drawn."""
    seconds: tuple[float, float]
    """Shortest and longest duration in a slot of `MIN_SLOT_S`; both grow with the slot."""
    max_seconds: float
    """Longest duration in any slot."""


@dataclass(frozen=True)
class PlannedFault:
    """A fault with its time. Times are seconds since the start of the load."""

    at: float
    name: str
    target: str
    seconds: float


def plan_faults(seed: int, load_s: float, specs: Sequence[FaultSpec]) -> list[PlannedFault]:
    """The faults of a load of that many seconds."""
    chance = random.Random(seed)
    slot_s = min(MAX_SLOT_S, max(MIN_SLOT_S, load_s / len(specs)))
    faults: list[PlannedFault] = []
    bag: list[FaultSpec] = []
    for slot in range(int(load_s / slot_s + 1e-9)):
        bag = bag or chance.sample([*specs], len(specs))
        spec = bag.pop()
        low, high = spec.seconds
        scale = slot_s / MIN_SLOT_S
        seconds = min(spec.max_seconds, chance.uniform(low, high) * scale)
        at = slot * slot_s + chance.uniform(0, MAX_JITTER) * slot_s
        faults.append(PlannedFault(round(at, 2), spec.name, chance.choice([*spec.targets]), round(seconds, 2)))
    return faults
