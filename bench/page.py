"""Writes docs/performance.md and its plots from the registry of benchmarks and the recorded runs.

Only the text between markers is generated; the rest of the page is written by hand. Nothing is measured here: the
output depends on the recorded runs alone, so that a test can check that the page is current.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.claims import Bench
from bench.plots import format_number, render_svg
from bench.records import ROOT, Record, records

PAGE = Path("docs/performance.md")
PICTURES = Path("docs/pictures/performance")


def render_files(benches: Mapping[str, Bench]) -> dict[Path, str]:
    """Every generated file by its path in the repository."""
    runs = {name: records(name) for name in benches}
    page = replace_section((ROOT / PAGE).read_text("utf-8"), "questions", _questions(benches, runs))
    return {
        PAGE: replace_section(page, "figures", _figures(benches, runs)),
        **{PICTURES / f"{name}.svg": render_svg(name, own) for name, own in runs.items() if own},
    }


def write(benches: Mapping[str, Bench]) -> None:
    """Write them, and delete the plots of benchmarks that no longer exist."""
    files = render_files(benches)
    (ROOT / PICTURES).mkdir(exist_ok=True)
    for old in {path.relative_to(ROOT) for path in (ROOT / PICTURES).iterdir()} - files.keys():
        (ROOT / old).unlink()
    for path, text in files.items():
        (ROOT / path).write_text(text, "utf-8")


def replace_section(text: str, name: str, lines: Sequence[str]) -> str:
    """Replace the lines between the two markers of that name."""
    begin, end = f"<!-- {name}: written by bench/page.py -->\n", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"a page needs one {begin.strip()} and one {end}\n  fix: add both where the {name} belong")
    before, _, rest = text.partition(begin)
    return before + begin + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2]


# ---------------------------------------------------------------- tables
def _questions(benches: Mapping[str, Bench], runs: Mapping[str, Sequence[Record]]) -> list[str]:
    rows = [
        (f"[{bench.question}](#{name})", bench.target, _summary(runs[name]), _why(bench, runs[name]))
        for name, bench in benches.items()
    ]
    return _table(("question", "target", "newest run", "why it was missed"), rows)


def _why(bench: Bench, runs: Sequence[Record]) -> str:
    return bench.why_missed if runs and not runs[-1].claim.is_met else ""


def _summary(runs: Sequence[Record]) -> str:
    if not runs:
        return "not run yet"
    claim, results = runs[-1].claim, [run.claim.value for run in runs]
    spread = (
        f", {format_number(min(results))} to {format_number(max(results))} in {len(runs)} runs"
        if min(results) < max(results)
        else ""
    )
    unit = f" {claim.details['unit']}" if "unit" in claim.details else ""
    verdict = "met" if claim.is_met else "**missed**"
    return f"target {format_number(claim.target)}, measured {format_number(claim.value)}{unit}{spread}: {verdict}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {row} |" for row in cells)]


# ---------------------------------------------------------------- a section for each bench
def _figures(benches: Mapping[str, Bench], runs: Mapping[str, Sequence[Record]]) -> list[str]:
    parts: list[str] = []
    for name, bench in benches.items():
        parts += [
            f"### {name}",
            "",
            f"{bench.question} `python -m bench {name}`",
            "",
            f"{bench.prints} Target: {bench.target}",
            "",
        ]
        parts += _section(name, runs[name]) if runs[name] else ["Not run yet.", ""]
    return parts[:-1]


def _section(name: str, runs: Sequence[Record]) -> Iterator[str]:
    run = runs[-1]
    yield from (f"{_summary(runs)}.", "")
    yield from (f"![{name}: what was measured](pictures/performance/{name}.svg)", "")
    if run.rows:
        rows = [
            (
                "· " * row.name.startswith(" ") + row.name.strip(),
                *map(format_number, (row.median, min(row.values), max(row.values))),
                row.unit,
                str(len(row.values)),
            )
            for row in run.rows
        ]
        yield from (*_table(("", "median", "least", "most", "unit", "values"), rows), "")
    more = {key: value for key, value in run.claim.details.items() if key != "unit"}
    if curve := more.pop("curve", None):
        yield from (*_curve(curve), "")
    if more:
        yield from (*(f"- {key.replace('_', ' ')}: {_format_value(value)}" for key, value in more.items()), "")
    here = run.machine
    yield (
        f"{run.date} UTC, {run.took_s:.0f} s; {here.cpu}, {here.cores} cores, load {here.load} when it began; "
        f"Python {here.python}, torch {here.torch}; commit {here.commit}"
    )
    yield ""


def _curve(curve: Mapping[str, Any]) -> list[str]:
    series = curve["series"]
    rows = [[format_number(value) for value in row] for row in zip(curve["x"], *series.values(), strict=True)]
    return _table([curve.get("axes", [""])[0], *series], rows)


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_format_value(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, int | float) else str(value)
