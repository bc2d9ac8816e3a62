"""Rows of a comparison with a reference implementation: wall time of both sides, and the ratio of their CPU times."""

from __future__ import annotations

from collections.abc import Sequence

from bench.claims import Row
from bench.in_process import Elapsed

REFERENCE = "our reimplementation of the published loop"
"""The baseline where the published code is in no package that can be installed here."""


def speedup_rows(what: str, reference: Sequence[Elapsed], ours: Sequence[Elapsed], how: str = "served") -> list[Row]:
    """Seconds of both sides, measured by turns, and how many times as fast ours is.

    The speed-up is that of wall time. That of CPU time stands beside it: a busy machine changes it less, but it leaves
    out the time that serving waits.
    """
    pairs = list(zip(reference, ours, strict=True))
    return [
        Row(f"{what}, reimplementation", "s", [one.wall_s for one in reference]),
        Row(f"{what}, {how}", "s", [one.wall_s for one in ours]),
        Row("  times faster", "x", [one.wall_s / own.wall_s for one, own in pairs]),
        Row("  times faster, CPU time", "x", [one.cpu_s / own.cpu_s for one, own in pairs]),
    ]
