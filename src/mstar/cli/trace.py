"""`mstar trace`: what the last requests of a running server did, and when. It asks the server, and keeps nothing."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from mstar.errors import LoadError

_EIGHTHS = " ▏▎▍▌▋▊▉"
_MIN_BAR_COLUMNS = 20
"""So many columns a bar has at least, however narrow the terminal is."""


def add_trace(commands: Any) -> None:
    """Add the command to a parser."""
    text = "show what requests of a running server did, and when"
    trace = commands.add_parser("trace", help=text, description=text)
    trace.add_argument("id", nargs="?", help="the X-Request-Id of one request; without it, the last ones are listed")
    trace.add_argument("--url", default="http://127.0.0.1:8000", help="where the server is (http://127.0.0.1:8000)")
    trace.add_argument("--key", default="", help="the API key with which the request was sent")
    trace.add_argument("-o", "--output", type=Path, help="write it as a Chrome trace, which ui.perfetto.dev opens")
    trace.set_defaults(run=_trace)


def _trace(options: argparse.Namespace) -> None:
    columns = shutil.get_terminal_size().columns
    if options.id is None:
        if options.output:
            raise LoadError("a trace is of one request, and none was named\n  fix: mstar trace ID -o x.json")
        print("\n".join(format_requests(_fetch(options, "/v1/requests")["data"])))
        return
    path = f"/v1/requests/{quote(options.id, safe='')}/trace"
    if not options.output:
        print("\n".join(format_waterfall(_fetch(options, path), columns)))
        return
    told = json.dumps(_fetch(options, f"{path}?format=chrome"))
    try:
        options.output.write_text(told)
    except OSError as error:
        what = f"{options.output}: cannot be written: {error.strerror}"
        raise LoadError(f"{what}\n  fix: choose another place") from error
    print(f"wrote the trace of {options.id} to {options.output}; ui.perfetto.dev opens it")


def _fetch(options: argparse.Namespace, path: str) -> Any:
    """What the server answers. Raises LoadError."""
    if not options.url.startswith(("http://", "https://")):
        raise LoadError(f"{options.url} is no address of a server\n  fix: give --url http://HOST:PORT")
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    try:
        with urlopen(Request(options.url.rstrip("/") + path, headers=headers), timeout=10) as answer:
            return json.load(answer)
    except HTTPError as error:
        with error:
            raise LoadError(_http_error_text(error)) from error
    except (URLError, OSError, ValueError) as error:
        why = error.reason if isinstance(error, URLError) else error
        what = f"no server answers at {options.url}: {why}"
        raise LoadError(f"{what}\n  fix: start one with mstar serve, or say with --url where it is") from error


def _http_error_text(error: HTTPError) -> str:
    try:
        what = json.load(error)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        what = error.reason
    fix = "give the server's key with --key" if error.code == 401 else "run mstar trace without an id, which lists them"
    return f"the server refused with {error.code}: {what}\n  fix: {fix}"


# ---------------------------------------------------------------- as text
def format_requests(requests: Sequence[dict[str, Any]]) -> list[str]:
    """Requests as a table."""
    if not requests:
        return ["no request yet"]
    rows = [("STARTED", "SECONDS", "STATUS", "MODEL", "ENDPOINT", "EMISSIONS", "ID")]
    for one in requests:
        begun = datetime.fromtimestamp(one["started_at"]).strftime("%H:%M:%S")
        emissions = ", ".join(f"{each['count']} {each['kind']}" for each in one["emissions"]) or "-"
        status = "running" if one["status"] is None else str(one["status"])
        rows.append((begun, f"{one['seconds']:.3f}", status, one["model"], one["endpoint"], emissions, one["id"]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def format_waterfall(trace: dict[str, Any], columns: int) -> list[str]:
    """One request as bars, one line for each span, as wide as the terminal."""
    spans = trace["spans"]
    length = max([trace["seconds"], *(span["end"] for span in spans)]) or 1.0
    process = max(len(span["process"]) for span in spans)
    lines = [
        (f"{span['process'].ljust(process)}  {_label(span)}", span["start"], span["end"], _span_details(span))
        for span in spans
    ]
    lines += [
        (f"{'front'.ljust(process)}  {one['kind']}", one["first"][0], one["last"], f"{one['count']} emissions")
        for one in trace["emissions"]
    ]
    left = max(len(label) for label, *_ in lines)
    right = max(len(figures) for *_, figures in lines)
    width = max(_MIN_BAR_COLUMNS, columns - left - right - 4)
    state = "running" if trace["status"] is None else f"status {trace['status']}"
    head = f"{trace['id']}  {trace['model']} at {trace['endpoint']}, {state}, {trace['seconds']:.3f} s"
    return [head] + [
        f"{label.ljust(left)}  {_bar(start / length, end / length, width)}  {figures}".rstrip()
        for label, start, end, figures in lines
    ]


def _label(span: dict[str, Any]) -> str:
    depth = {"op": "  ", "transfer": "  ", "walk": " "}.get(span["kind"], "")
    again = f" #{span['attempt']}" if span["attempt"] > 1 else ""
    return f"{depth}{span['name']}{again}"


def _span_details(span: dict[str, Any]) -> str:
    told = [f"{_format_seconds(span['end'] - span['start'])}"]
    if span["calls"]:
        told.append(f"{span['calls']}×")
    if span["busy"]:
        told.append(f"busy {_format_seconds(span['busy'])}")
    if span["waited"] >= 0.001:
        told.append(f"waited {_format_seconds(span['waited'])}")
    if span["batch"] > 1:
        told.append(f"batch {span['batch']}")
    return " ".join([*told, span["text"]]).rstrip()


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _bar(start: float, end: float, width: int) -> str:
    """A bar from one fraction of the width to another: it begins with a column, and ends with an eighth of one."""
    column = min(max(0, int(start * width)), width - 1)  # clocks of two processes differ a little
    full, part = divmod(max(1, round((end * width - column) * 8)), 8)
    return (" " * column + "█" * full + _EIGHTHS[part].strip()).ljust(width)
