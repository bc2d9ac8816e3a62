"""A report as a Markdown page."""

from __future__ import annotations

from mstar.cli.gpu_report.records import Report, Row, Section

_REHEARSAL = "**Rehearsal on the pretend GPU: nothing on this page was run on a GPU, and no figure is a speed of one.**"


def render_report(report: Report) -> str:
    """The page."""
    title = "# GPU report (rehearsal)" if report.is_pretend else f"# GPU report: {report.device}"
    lines = [title, "", f"mstar {report.mstar}, {report.created} UTC, device `{report.device}`.", ""]
    if report.is_pretend:
        lines += [_REHEARSAL, ""]
    lines += ["| section | state | seconds | question |", "|---|---|---|---|"]
    for section in report.sections:
        lines.append(f"| {section.name} | {section.state} | {section.seconds:.0f} | {section.question} |")
    for section in report.sections:
        lines += ["", *_section_lines(section)]
    return "\n".join(lines) + "\n"


def _section_lines(section: Section) -> list[str]:
    lines = [f"## {section.name}: {section.state}", ""]
    if section.rows:
        lines += ["| what | state | value | note |", "|---|---|---|---|", *map(_row_line, section.rows)]
    if section.error:
        lines += ["", "```text", section.error.replace("```", "'''"), "```"]
    return lines


def _row_line(row: Row) -> str:
    value = "" if row.value is None else f"{row.value:.4g} {row.unit}".strip()
    cells = (row.what, row.state, value, row.note)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
