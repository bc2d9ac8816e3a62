"""Roofline estimate: seconds of a forward of a decoder from its size and the data sheet of a device.

A forward reads all weights and the KV caches of its rows once, and computes two operations per parameter and position.
It takes the longer of the two, at the shares of the published rates that engines reach, plus a fixed overhead:

    seconds = OVERHEAD_S + max(bytes / (bandwidth * BANDWIDTH_SHARE), operations / (rate * COMPUTE_SHARE))

`python -m bench simulated` compares it with results that others have published. Nothing here was measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mstar.errors import LoadError, format_names, suggest_name

BANDWIDTH_SHARE = 0.75
"""Share of the published bandwidth that a decode step reaches."""
COMPUTE_SHARE = 0.5
"""Share of the published rate that a prefill reaches."""
OVERHEAD_S = 0.0002
"""Seconds of a forward beside the network: scheduling, sampling, launch."""
LOW, HIGH = 0.85, 1.6
"""Stated error: a real cost is expected between these multiples of the estimate. Engines differ from each other by as
much."""
WEIGHT_BYTES = 2
"""Bytes of a parameter and of an entry of the KV cache: bfloat16."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class DataSheet:
    """Published figures of a device."""

    bytes_per_s: float
    """Memory bandwidth."""
    operations_per_s: float
    """Dense bfloat16 rate."""
    source: str


_NVIDIA = "NVIDIA data sheet"
DATA_SHEETS: Mapping[str, DataSheet] = MappingProxyType(
    {
        "L4-24GB": DataSheet(300e9, 121e12, f"{_NVIDIA}: L4"),
        "A10-24GB": DataSheet(600e9, 125e12, f"{_NVIDIA}: A10"),
        "L40S-48GB": DataSheet(864e9, 362e12, f"{_NVIDIA}: L40S"),
        "RTX4090-24GB": DataSheet(1008e9, 165e12, f"{_NVIDIA}: Ada architecture, GeForce RTX 4090"),
        "A100-40GB": DataSheet(1555e9, 312e12, f"{_NVIDIA}: A100 40GB SXM"),
        "A100-80GB": DataSheet(2039e9, 312e12, f"{_NVIDIA}: A100 80GB SXM"),
        "H100-80GB": DataSheet(3350e9, 989e12, f"{_NVIDIA}: H100 SXM"),
        "H200-141GB": DataSheet(4800e9, 989e12, f"{_NVIDIA}: H200 SXM"),
    }
)
"""Common devices by name."""


def find_data_sheet(device: str) -> DataSheet:
    """Published figures of a device. Raises LoadError for an unknown one."""
    if device not in DATA_SHEETS:
        problem = f"there is no data sheet of `{device}`{suggest_name(device, DATA_SHEETS)}"
        raise LoadError(f"{problem}\n  fix: use {format_names(DATA_SHEETS)}")
    return DATA_SHEETS[device]


@dataclass(frozen=True, slots=True)
class DecoderSize:
    """What a forward of a decoder reads and computes."""

    parameters: int
    """Parameters that each forward reads: all of them, also of a mixture of experts, which overestimates its cost."""
    kv_entries: int
    """Entries of the KV cache of one position, all layers together."""

    def forward_s(self, sheet: DataSheet, rows: int, positions: int, depth: float) -> float:
        """Seconds of a forward of `rows` requests with `positions` new positions and `depth` cached ones each."""
        moved = WEIGHT_BYTES * (self.parameters + self.kv_entries * rows * (depth + positions))
        operations = 2 * self.parameters * rows * positions
        return OVERHEAD_S + max(
            moved / (sheet.bytes_per_s * BANDWIDTH_SHARE), operations / (sheet.operations_per_s * COMPUTE_SHARE)
        )
