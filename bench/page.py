"""Writes docs/performance.md, its plots and the figures in README.md from the recorded runs.

Only the text between markers is generated, and in README.md the cell before a benchmark's command; the rest is written
by hand. Nothing is measured here: the output depends on the history and the repository alone, so that a test can check
that the pages are current.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.claims import Bench, Claim
from bench.history import Record
from bench.plots import format_number, render_svg
from bench.publication import MIN_RUNS, Publication, publish_all
from bench.repository import ROOT

PAGE = Path("docs/performance.md")
README = Path("README.md")
PICTURES = Path("docs/pictures/performance")
README_CELL = re.compile(r"(?<=\| )[^|]*(?= \| `python -m bench ([a-z0-9-]+)` \|$)", re.MULTILINE)


def render_files(benches: Mapping[str, Bench], root: Path = ROOT) -> dict[Path, str]:
    """Every generated file by its path in the repository."""
    publications = publish_all(benches, root)
    page = replace_section((root / PAGE).read_text("utf-8"), "claims", _claims(benches, publications))
    return {
        PAGE: replace_section(page, "figures", _figures(benches, publications)),
        README: fill_readme((root / README).read_text("utf-8"), publications),
        **{PICTURES / f"{name}.svg": render_svg(name, one) for name, one in publications.items() if one.is_published},
    }


def write(benches: Mapping[str, Bench], root: Path = ROOT) -> None:
    """Write them, and delete the plots of benchmarks that are not published."""
    files = render_files(benches, root)
    (root / PICTURES).mkdir(parents=True, exist_ok=True)
    for old in {path.relative_to(root) for path in (root / PICTURES).iterdir()} - files.keys():
        (root / old).unlink()
    for path, text in files.items():
        (root / path).write_text(text, "utf-8")


def replace_section(text: str, name: str, lines: Sequence[str]) -> str:
    """Replace the lines between the two markers of that name."""
    begin, end = f"<!-- {name}: written by bench/page.py -->\n", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"a page needs one {begin.strip()} and one {end}\n  fix: add both where the {name} belong")
    before, _, rest = text.partition(begin)
    return before + begin + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2]


def fill_readme(text: str, publications: Mapping[str, Publication]) -> str:
    """Write what was measured into the cell before each benchmark's command."""
    return README_CELL.sub(lambda cell: _result(publications[cell[1]]) if cell[1] in publications else cell[0], text)


# ---------------------------------------------------------------- the table of claims
def _claims(benches: Mapping[str, Bench], publications: Mapping[str, Publication]) -> list[str]:
    verdicts = [one.verdict for one in publications.values()]
    head = ("question", "target", "median", "spread", "runs that met it", "commit", "CPU", "verdict", "why missed")
    return [
        f"{len(publications)} benchmarks: {verdicts.count('met')} targets met, {verdicts.count('missed')} missed, "
        f"{verdicts.count('not enough runs')} without enough runs for a claim.",
        "",
        *_table(head, [_claim_row(name, bench, publications[name]) for name, bench in benches.items()]),
    ]


def _claim_row(name: str, bench: Bench, one: Publication) -> Sequence[str]:
    row = (f"[{bench.question}](#{name})", bench.target)
    if not one.is_published:
        return *row, "", "", "", "", "", f"not enough runs: {len(one.runs)} of {MIN_RUNS}", ""
    claim, record = one.median_run.claim, one.median_run.record
    why = "" if one.is_met else bench.why_missed
    figures = (f"{format_number(one.median)}{_unit(claim)} (target {format_number(claim.target)})", _spread(one))
    runs = (f"{one.met} of {len(one.runs)}", f"`{record.commit[:7]}`", record.machine.cpu)
    return *row, *figures, *runs, _verdict(one), why


def _result(one: Publication) -> str:
    """What was measured, in a phrase."""
    if not one.is_published:
        return "not enough runs yet"
    claim = one.median_run.claim
    value = f"{format_number(one.median)}{_unit(claim)} ({_spread(one)})"
    return f"{value}: {_verdict(one)} ({one.met} of {len(one.runs)} runs met it)"


def _verdict(one: Publication) -> str:
    return "met" if one.is_met else "**missed**"


def _spread(one: Publication) -> str:
    return " to ".join(map(format_number, one.spread))


def _unit(claim: Claim) -> str:
    return f" {claim.details['unit']}" if "unit" in claim.details else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {row} |" for row in cells)]


# ---------------------------------------------------------------- a section for each bench
def _figures(benches: Mapping[str, Bench], publications: Mapping[str, Publication]) -> list[str]:
    parts: list[str] = []
    for name, bench in benches.items():
        parts += [f"### {name}", "", f"{bench.question} `python -m bench {name}`", ""]
        parts += [f"{bench.prints} Target: {bench.target}", ""]
        if bench.decision:
            parts += [f"Series {bench.series}: [what changed](decisions/{bench.decision}).", ""]
        parts += _section(name, publications[name])
    return parts[:-1]


def _section(name: str, one: Publication) -> Iterator[str]:
    if one.is_published:
        commit = one.median_run.record.commit[:7]
        yield from (f"{len(one.runs)} runs of commit `{commit}`: {_result(one)}. The median run:", "")
        yield from (f"![{name}: what was measured](pictures/performance/{name}.svg)", "")
        yield from _run(one.median_run.record)
    too_few = [] if one.is_published else [(run.record, f"{len(one.runs)} of {MIN_RUNS} runs") for run in one.runs]
    if unpublished := [*one.others, *too_few]:
        yield from ("Unpublished runs, and why they do not count:", "")
        groups: dict[tuple[Any, ...], list[Record]] = {}
        for record, why in unpublished:
            groups.setdefault((record.series, record.commit, record.machine.cpu, why), []).append(record)
        head = ("last run (UTC)", "series", "commit", "values", "runs that met the target", "CPU", "why not")
        yield from (*_table(head, [_unpublished_row(records, key[-1]) for key, records in groups.items()]), "")
    elif not one.runs:
        yield from ("No run on record.", "")


def _unpublished_row(records: Sequence[Record], why: str) -> Sequence[str]:
    last, claims = records[-1], [record.claim for record in records if record.claim]
    values = ", ".join(format_number(claim.value) for claim in claims)
    met = f"{sum(claim.is_met for claim in claims)} of {len(records)}"
    return last.date, str(last.series), f"`{last.commit[:7]}`", values, met, last.machine.cpu, why


def _run(run: Record) -> Iterator[str]:
    """The figures of one run."""
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
    more = {key: value for key, value in run.claim.details.items() if key != "unit"} if run.claim else {}
    if curve := more.pop("curve", None):
        yield from (*_curve(curve), "")
    if more:
        yield from (*(f"- {key.replace('_', ' ')}: {_format_value(value)}" for key, value in more.items()), "")
    here, load = run.machine, run.load
    yield (
        f"{run.date} UTC, {run.took_s:.0f} s; {here.cpu}, {here.cores} cores; other work took "
        f"{_percent(load.other_before)} of the CPU time before and {_percent(load.other_during)} during the run, "
        f"steal {_percent(load.steal_during)}; Python {here.python}, torch {here.torch}"
    )
    yield ""


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"


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
