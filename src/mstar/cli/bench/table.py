"""Figures as rows of a table: one for each kind of request under each load. They are written by others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

COLUMN_NAMES = (
    "load",
    "kind",
    "ok",
    "refused",
    "failed",
    "ok/s",
    "good/s",
    "kept",
    "first ms 50/90/99",
    "all s 50/90/99",
    "",
)
TEXT_COLUMNS = ("kind", "")
"""Columns with words in them."""
_COLUMNS = "{:>13} {:<14} {:>5} {:>7} {:>6} {:>7} {:>7} {:>7} {:>17} {:>14}  {}"


def format_header() -> str:
    """The first line."""
    return _COLUMNS.format(*COLUMN_NAMES).rstrip()


def format_run(told: Mapping[str, Any]) -> Iterator[str]:
    """What is said of one run."""
    for row in make_rows(told):
        yield _COLUMNS.format(*row).rstrip()
    if what := generator_warning(told):
        yield f"  {what}\n  fix: give it a core or a machine of its own, or ask for less"


def make_rows(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The cells of each row."""
    load = f"{told['load']:.3g} {told['unit']}"
    for kind, figures in told["kinds"].items():
        yield (
            load,
            kind,
            str(figures["completed"]),
            str(figures["refusals"]["count"]),
            str(sum(figures["failed"].values())),
            f"{figures['per_s']:.2f}",
            f"{figures['goodput_per_s']:.2f}",
            format_percentage(figures["kept"] / figures["sent"] if figures["sent"] else None),
            _spread(figures["first_s"], 1000, ".0f"),
            _spread(figures["took_s"], 1, ".2f"),
            "; ".join(_format_notes(figures)),
        )


def generator_warning(told: Mapping[str, Any]) -> str:
    """What to say if the load generator itself was too slow."""
    own = told["generator"]
    if not own["is_bottleneck"]:
        return ""
    late = own["late_s"].get("p99", 0.0) * 1000
    what = f"the load generator was {late:.0f} ms late (p99) and computed for {own['busy']:.0%} of the time"
    return f"{what}: these figures are its own too"


def _format_notes(figures: Mapping[str, Any]) -> Iterator[str]:
    """What is worth saying of these requests beside how long they took."""
    if sound := figures.get("sound"):
        chunks, streams = sound["chunks_on_time"]["100ms"], sound["streams_on_time"]["100ms"]
        yield f"on time ±100 ms: {format_percentage(chunks)} of chunks, {format_percentage(streams)} of streams"
        yield f"{sound['underruns']} underruns, {sound['silence_s']:.2f} s"
        yield f"RTF {_spread(sound['rtf'], 1, '.2f')}"
    elif figures["gap_s"]:
        yield f"gaps {_spread(figures['gap_s'], 1000, '.0f')} ms"
    if figures["tokens_per_s"]:
        yield f"{figures['tokens_per_s']:.0f} tokens/s"
    if figures.get("rtf"):
        yield f"RTF {_spread(figures['rtf'], 1, '.2f')}"
    if figures["skipped"]:
        yield f"{figures['skipped']} ticks skipped"
    refusals = figures["refusals"]
    if refusals["count"]:
        yield f"refused in {_spread(refusals['took_s'], 1000, '.0f')} ms"
        if refusals["retry_after_s"]:
            yield f"come again after {_spread(refusals['retry_after_s'], 1, '.3g')} s"


def format_percentage(part: float | None) -> str:
    """A share as a percentage, not rounded up to what it is not."""
    return "-" if part is None else f"{int(part * 1000) / 10:.1f}%"


def _spread(values: Mapping[str, float], scale: float, form: str) -> str:
    return "/".join(format(value * scale, form) for value in values.values()) or "-"
