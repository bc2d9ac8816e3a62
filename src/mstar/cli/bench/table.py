"""Result table of a load test: one row per request kind and load level, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

COLUMN_NAMES = (
    "load",
    "kind",
    "ok",
    "rejected",
    "failed",
    "ok/s",
    "goodput/s",
    "SLO met",
    "TTFT ms 50/90/99",
    "duration s 50/90/99",
    "",
)
TEXT_COLUMNS = ("kind", "")
"""Left-aligned columns."""
_COLUMNS = "{:>13} {:<14} {:>5} {:>8} {:>6} {:>7} {:>9} {:>7} {:>17} {:>19}  {}"


def format_header() -> str:
    """Header line."""
    return _COLUMNS.format(*COLUMN_NAMES).rstrip()


def format_run(level: Mapping[str, Any]) -> Iterator[str]:
    """Lines of one load level, with a warning if the load generator was the bottleneck."""
    for row in make_rows(level):
        yield _COLUMNS.format(*row).rstrip()
    if warning := generator_warning(level):
        yield f"  {warning}\n  fix: run it on its own core or machine, or reduce the load"


def make_rows(level: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Cells of each row of a load level."""
    load = f"{level['load']:.3g} {level['unit']}"
    for kind, metrics in level["kinds"].items():
        yield (
            load,
            kind,
            str(metrics["completed"]),
            str(metrics["rejected"]["count"]),
            str(sum(metrics["failed"].values())),
            f"{metrics['requests_per_s']:.2f}",
            f"{metrics['goodput_per_s']:.2f}",
            format_percentage(metrics["slo_met"] / metrics["sent"] if metrics["sent"] else None),
            _format_percentiles(metrics["ttft_s"], 1000, ".0f"),
            _format_percentiles(metrics["duration_s"], 1, ".2f"),
            "; ".join(_format_notes(metrics)),
        )


def generator_warning(level: Mapping[str, Any]) -> str:
    """Warning if the load generator was the bottleneck. Empty: it was not."""
    generator = level["generator"]
    if not generator["is_bottleneck"]:
        return ""
    delay_ms = generator["send_delay_s"].get("p99", 0.0) * 1000
    usage = f"p99 send delay {delay_ms:.0f} ms, CPU utilization {generator['utilization']:.0%}"
    return f"the load generator was the bottleneck ({usage}): the results are not reliable"


def _format_notes(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Metrics beyond latency: audio continuity, token rate, rejections."""
    if audio := metrics.get("audio"):
        chunks, streams = audio["chunks_on_time"]["100ms"], audio["streams_on_time"]["100ms"]
        yield f"on time ±100 ms: {format_percentage(chunks)} of chunks, {format_percentage(streams)} of streams"
        yield f"{audio['underruns']} underruns, {audio['silence_s']:.2f} s"
        yield f"RTF {_format_percentiles(audio['rtf'], 1, '.2f')}"
    elif metrics["itl_s"]:
        yield f"ITL {_format_percentiles(metrics['itl_s'], 1000, '.0f')} ms"
    if metrics["tokens_per_s"]:
        yield f"{metrics['tokens_per_s']:.0f} tokens/s"
    if metrics.get("rtf"):
        yield f"RTF {_format_percentiles(metrics['rtf'], 1, '.2f')}"
    if metrics["skipped"]:
        yield f"{metrics['skipped']} ticks skipped"
    rejected = metrics["rejected"]
    if rejected["count"]:
        yield f"rejected in {_format_percentiles(rejected['duration_s'], 1000, '.0f')} ms"
        if rejected["retry_after_s"]:
            yield f"retry after {_format_percentiles(rejected['retry_after_s'], 1, '.3g')} s"


def format_percentage(fraction: float | None) -> str:
    """A fraction as a percentage, rounded down, so that 100% means all."""
    return "-" if fraction is None else f"{int(fraction * 1000) / 10:.1f}%"


def _format_percentiles(values: Mapping[str, float], scale: float, form: str) -> str:
    return "/".join(format(value * scale, form) for value in values.values()) or "-"
