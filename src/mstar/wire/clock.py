"""What a process's clock is against the time of day, so that times of several processes can be told as one."""

from __future__ import annotations

from time import monotonic, time

CLOCK_SAMPLES = 5
"""A process can be put to sleep between reading one clock and the other: of so many pairs the closest counts."""


def measure_clock_offset() -> float:
    """The time of day when this process's monotonic clock was 0."""
    pairs: list[tuple[float, float]] = []
    for _ in range(CLOCK_SAMPLES):
        before, day, after = monotonic(), time(), monotonic()
        pairs.append((after - before, day - (before + after) / 2))
    return min(pairs)[1]
