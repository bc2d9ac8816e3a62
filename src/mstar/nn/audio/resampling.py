"""Audio resampling with soxr."""

from __future__ import annotations

from typing import Any


def resample(samples: Any, rate_hz: int, target_rate_hz: int) -> Any:
    """Return the samples at another sample rate."""
    import soxr

    return samples if rate_hz == target_rate_hz else soxr.resample(samples, rate_hz, target_rate_hz)
