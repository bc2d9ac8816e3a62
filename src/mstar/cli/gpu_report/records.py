"""Data of a report: sections of rows. The JSON file has the same fields."""

from __future__ import annotations

from typing import Literal

import msgspec

FORMAT = 1
"""Version of the JSON file."""
State = Literal["ok", "failed", "skipped"]


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that was tried or measured."""

    what: str
    state: State = "ok"
    value: float | None = None
    """The measured figure, if there is one."""
    unit: str = ""
    note: str = ""
    """Details; of a row that is not ok, the reason."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of one subject, from a process of its own."""

    name: str
    question: str
    state: State
    seconds: float
    rows: list[Row]
    error: str = ""
    """The end of its output, if the process failed."""


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found on one machine."""

    format: int
    created: str
    """Date and time, UTC."""
    mstar: str
    """Version of mstar."""
    device: str
    """Device in the notation of torch, or `pretend`."""
    is_pretend: bool
    """Whether nothing was run on a GPU: a rehearsal on the pretend GPU."""
    sections: list[Section]


def worst(states: list[State]) -> State:
    """State of a section with rows of these states."""
    if "failed" in states:
        return "failed"
    return "ok" if "ok" in states else "skipped"
