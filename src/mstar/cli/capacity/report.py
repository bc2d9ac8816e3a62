"""Output of a capacity plan: table, plot, placement file and JSON. Estimates are marked in each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from mstar.cli.bench.plots import PlotAxes, Series, line_plot
from mstar.cli.bench.report_style import STYLE
from mstar.cli.capacity.evaluation import Evaluation, Figure
from mstar.cli.capacity.search import CapacityPlan
from mstar.cli.config import format_table
from mstar.plan.profile import ModelProfile

ESTIMATE_MARK = " *"


def format_plan(plan: CapacityPlan, profile: ModelProfile, currency: str, target: float) -> str:
    """The Pareto front, and the evaluation just below the cheapest that holds the SLO."""
    shown = plan.front
    if plan.next_cheaper is not None and plan.next_cheaper not in shown:
        shown = sorted([*shown, plan.next_cheaper], key=lambda one: one.per_hour)
    units = list(dict.fromkeys(unit for one in shown for unit in one.cost_per_unit))
    head = ("", f"{currency}/h", "SLO met", "TTFT p50 ms", "TTFT p95 ms", "requests/s")
    rows: list[tuple[str, ...]] = [(*head, *(f"{currency} per {unit}" for unit in units), "batch", "workers")]
    for one in shown:
        costs = [_range(one.cost_per_unit[unit], _price) if unit in one.cost_per_unit else "-" for unit in units]
        rows.append(
            (
                ("->" if one is plan.best else "") + (ESTIMATE_MARK if one.has_estimate else ""),
                f"{one.per_hour:.4g}",
                _range(one.attainment, lambda share: f"{100 * share:.1f} %"),
                _range(one.ttft_p50_s, _ms),
                _range(one.ttft_p95_s, _ms),
                _range(one.requests_per_s, lambda value: f"{value:.2f}"),
                *costs,
                str(one.candidate.max_batch_size),
                str(one.candidate),
            )
        )
    lines = format_table(rows)
    lines.append("Values in parentheses: at the lowest and at the highest cost that the profile measured.")
    lines += estimate_notes(profile, plan)
    if plan.best is None:
        lines.append(f"No placement of {len(plan.evaluations)} holds the SLO for {target:.1%} of the requests.")
    else:
        best = plan.best
        lines.append(f"-> cheapest that holds the SLO for {target:.1%} of the requests, also at the highest cost:")
        lines.append(
            f"   mstar serve {profile.model} --placement FILE --max-batch-size {best.candidate.max_batch_size}"
        )
    return "\n".join(lines)


def estimate_notes(profile: ModelProfile, plan: CapacityPlan) -> list[str]:
    """Warnings about the devices whose costs are estimates."""
    used = {group.device for one in plan.evaluations for group in one.candidate.groups}
    return [
        f"* ESTIMATE, not measured: the costs of {costs.device} are computed from {costs.machine}. {costs.note}"
        for costs in profile.devices
        if costs.is_estimate and costs.device in used
    ]


def placement_file(best: Evaluation, profile: ModelProfile, traffic: str, currency: str) -> str:
    """The placement file of an evaluation, with its figures as comments."""
    comments = [
        f"Written by `mstar plan-capacity` for {profile.model}: {traffic}",
        f"SLO met by {_range(best.attainment, lambda share: f'{100 * share:.1f} %')} of the requests; "
        f"{best.per_hour:.4g} {currency}/h",
        f"Serve with --max-batch-size {best.candidate.max_batch_size}",
    ]
    if best.has_estimate:
        comments.append("ESTIMATE: costs of at least one device come from its data sheet and were not measured")
    return best.candidate.to_toml(profile, comments)


def plot(plan: CapacityPlan, currency: str) -> str:
    """Attainment by cost along the Pareto front, as SVG: at the mean, lowest and highest cost of the profile."""
    is_estimate = any(one.has_estimate for one in plan.evaluations)
    title = "SLO attainment by cost" + (" (with ESTIMATED costs)" if is_estimate else "")

    def points(figure: Callable[[Figure], float]) -> list[tuple[float, float]]:
        return [(one.per_hour, figure(one.attainment)) for one in plan.front]

    series = [
        Series("mean cost", points(lambda figure: figure.value), 0),
        Series("best case", points(lambda figure: figure.high), 2, is_dashed=True),
        Series("worst case", points(lambda figure: figure.low), 1, is_dashed=True),
    ]
    axes = PlotAxes(title, f"{currency} per hour", "requests that meet the SLO", is_share=True)
    svg = line_plot(axes, series)
    head, _, rest = svg.partition(">")
    head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{head}><style>{STYLE} svg {{ background: var(--page) }}</style>{rest}\n"


def to_json(plan: CapacityPlan, profile: ModelProfile) -> dict[str, Any]:
    """Everything that was evaluated."""

    def describe(one: Evaluation) -> dict[str, Any]:
        return asdict(one) | {
            "attainment": one.attainment._asdict(),
            "ttft_p50_s": one.ttft_p50_s._asdict(),
            "ttft_p95_s": one.ttft_p95_s._asdict(),
            "requests_per_s": one.requests_per_s._asdict(),
            "cost_per_unit": {unit: figure._asdict() for unit, figure in one.cost_per_unit.items()},
            "is_best": one is plan.best,
            "is_on_front": one in plan.front,
        }

    return {
        "model": profile.model,
        "sources": {costs.device: costs.source for costs in profile.devices},
        "evaluations": [describe(one) for one in plan.evaluations],
    }


def _range(figure: Figure, text: Callable[[float], str]) -> str:
    value, low, high = map(text, figure)
    return value if low == high == value else f"{value} ({low} to {high})"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"


def _price(value: float) -> str:
    return f"{value:.3g}"
