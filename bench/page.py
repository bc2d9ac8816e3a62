"""docs/performance.md and the table of the README, made of the registry of benches and of what was recorded.

Only what stands between markers is written; the rest of both pages is by hand. Nothing is measured here, and what
is made depends on the recorded runs alone, so that a test can tell whether the pages follow them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.claims import Bench
from bench.plots import format_number, render_svg
from bench.records import ROOT, Record, records

PAGE, README = Path("docs/performance.md"), Path("README.md")
PICTURES = Path("docs/pictures/performance")


def render_files(benches: Mapping[str, Bench]) -> dict[Path, str]:
    """Every file that follows from the benches and their records, by its place in the repository."""
    runs = {name: records(name) for name in benches}
    page, readme = ((ROOT / path).read_text("utf-8") for path in (PAGE, README))
    page = replace_section(page, "questions", _questions(benches, runs))
    return {
        README: replace_section(readme, "measured", _measured(runs)),
        PAGE: replace_section(page, "figures", _figures(benches, runs)),
        **{PICTURES / f"{name}.svg": render_svg(name, own) for name, own in runs.items() if own},
    }


def write(benches: Mapping[str, Bench]) -> None:
    """Write them, and take away the pictures of benches that are no more."""
    files = render_files(benches)
    (ROOT / PICTURES).mkdir(exist_ok=True)
    for old in {path.relative_to(ROOT) for path in (ROOT / PICTURES).iterdir()} - files.keys():
        (ROOT / old).unlink()
    for path, text in files.items():
        (ROOT / path).write_text(text, "utf-8")


def replace_section(text: str, name: str, lines: Sequence[str]) -> str:
    """A text with these lines in the place of those between the two markers of that name."""
    begin, end = f"<!-- {name}: written by bench/page.py -->\n", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(
            f"a page needs one {begin.strip()} and one {end}\n  fix: put both where its {name} are to stand"
        )
    before, _, rest = text.partition(begin)
    return before + begin + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2]


# ---------------------------------------------------------------- tables
def _questions(benches: Mapping[str, Bench], runs: Mapping[str, Sequence[Record]]) -> list[str]:
    rows = [
        (f"[{bench.question}](#{name})", f"`python -m bench {name}`", bench.prints, _summary(runs[name]))
        for name, bench in benches.items()
    ]
    return _table(("question", "command", "what it prints", "newest run"), rows)


def _measured(runs: Mapping[str, Sequence[Record]]) -> list[str]:
    rows = [
        (own[-1].claim.claim, _summary(own), f"[`python -m bench {name}`]({PAGE}#{name})")
        for name, own in runs.items()
        if own
    ]
    return _table(("claim", "measured", "command"), rows)


def _summary(runs: Sequence[Record]) -> str:
    if not runs:
        return "not run yet"
    claim, found = runs[-1].claim, [run.claim.value for run in runs]
    spread = (
        f", {format_number(min(found))} to {format_number(max(found))} in {len(runs)} runs"
        if min(found) < max(found)
        else ""
    )
    unit = f" {claim.details['unit']}" if "unit" in claim.details else ""
    holds = "holds" if claim.is_met else "**does not hold**"
    return f"{format_number(claim.value)}{unit}{spread} (bar {format_number(claim.target)}): {holds}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {row} |" for row in cells)]


# ---------------------------------------------------------------- a section for each bench
def _figures(benches: Mapping[str, Bench], runs: Mapping[str, Sequence[Record]]) -> list[str]:
    parts: list[str] = []
    for name, bench in benches.items():
        parts += [f"### {name}", "", f"{bench.question[0].upper()}{bench.question[1:]} `python -m bench {name}`", ""]
        parts += _section(name, runs[name]) if runs[name] else ["Not run yet.", ""]
    return parts[:-1]


def _section(name: str, runs: Sequence[Record]) -> Iterator[str]:
    run = runs[-1]
    yield from (f"{_summary(runs)}. Claimed: {run.claim.claim}.", "")
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
