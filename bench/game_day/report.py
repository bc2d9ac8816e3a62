"""Writes docs/game-day.md and its picture: what was promised, checked and kept in the last game day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.game_day.faults import FAULTS
from bench.game_day.observations import Observations
from bench.game_day.promises import PROMISES, Judgment, Verdict
from bench.game_day.timeline import render_timeline

PAGE = Path("docs/game-day.md")
PICTURE = Path("docs/pictures/game-day.svg")
BEGIN, END = "<!-- report: written by bench/game_day/report.py -->\n", "<!-- end of report -->\n"
MAX_REASONS = 3
"""Broken observations that the page lists for a promise."""


def write_report(root: Path, seen: Observations, judgment: Judgment, date: str) -> None:
    """Write the picture, and the generated part of the page; the rest is written by hand."""
    (root / PICTURE).write_text(render_timeline(seen, f"Game day, seed {seen.seed}"), "utf-8")
    before, _, rest = (root / PAGE).read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    text = "\n".join(render_report(seen, judgment, date))
    (root / PAGE).write_text(f"{before}{BEGIN}\n{text}\n\n{END}{after}", "utf-8")


def render_report(seen: Observations, judgment: Judgment, date: str) -> Iterator[str]:
    """The lines of the report."""
    yield f"`python -m bench game-day --minutes {seen.minutes:g} --seed {seen.seed}`, {date} UTC:"
    yield (
        f"**{len(judgment.kept)} of {len(judgment.checked)} promises kept**, {len(seen.requests)} requests, "
        f"{sum(not fault.skipped for fault in seen.faults)} faults in {seen.load_s:.0f} s of load; ready "
        f"after {seen.start_s:.0f} s."
    )
    yield from ("", f"![Timeline of the faults and of each kind of request]({PICTURE.relative_to('docs')})", "")
    yield from ("### Promises", "")
    rows = [
        (promise.name, f"[{promise.quote}]({_link(promise.page)})", *_cells(judgment.verdicts[promise.name]))
        for promise in PROMISES
    ]
    yield from _table(("promise", "words of the page", "observations", "verdict"), rows)
    broken = {name: verdict.broken for name, verdict in judgment.verdicts.items() if verdict.broken}
    for name, reasons in broken.items():
        yield from ("", f"Broken, {name}:", "")
        yield from (f"- {reason}" for reason in reasons[:MAX_REASONS])
        if len(reasons) > MAX_REASONS:
            yield f"- and {len(reasons) - MAX_REASONS} more"
    yield from ("", "### Faults", "")
    faults = [
        (
            f"{fault.begun:.1f} s",
            fault.name,
            fault.target,
            "" if fault.skipped else f"{fault.ended - fault.begun:.1f} s",
            FAULTS[fault.name].what,
            f"skipped: {fault.skipped}" if fault.skipped else fault.note,
        )
        for fault in seen.faults
    ]
    yield from _table(("time", "fault", "target", "duration", "what it does", "outcome"), faults)
    yield from ("", "### Requests", "")
    kinds = dict.fromkeys(request.kind for request in seen.requests)
    yield from _table(("kind", "model", "requests", "ends", "longest pause"), [_kind_row(seen, kind) for kind in kinds])


def _kind_row(seen: Observations, kind: str) -> Sequence[str]:
    requests = seen.of_kind(kind)
    ends: dict[str, int] = {}
    for one in requests:
        end = f"`{one.code}`" if one.code else one.outcome
        ends[end] = ends.get(end, 0) + 1
    listed = ", ".join(f"{count} {end}" for end, count in sorted(ends.items(), key=lambda item: -item[1]))
    return kind, requests[0].model, str(len(requests)), listed, f"{max(one.longest_gap_s for one in requests):.1f} s"


def _cells(verdict: Verdict) -> tuple[str, str]:
    if not verdict.checked:
        return "0", "not checked"
    return str(verdict.checked), "kept" if verdict.is_kept else f"**broken** ({len(verdict.broken)})"


def _link(page: str) -> str:
    return page.removeprefix("docs/")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', ' ') for cell in row)} |"
