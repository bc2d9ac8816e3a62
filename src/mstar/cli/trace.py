"""`mstar trace`: list recent requests of a running server, or show the spans of one as a waterfall or Chrome trace."""

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

HTTP_TIMEOUT_S = 10.0
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MIN_BAR_COLUMNS = 20
"""Minimum width of a bar in columns, on any terminal."""


def add_trace(commands: Any) -> None:
    """Add the command to a parser."""
    text = "List recent requests of a running server, or show the trace of one."
    trace = commands.add_parser("trace", help=text, description=text)
    trace.add_argument("id", nargs="?", help="X-Request-Id of a request (default: list recent requests).")
    trace.add_argument(
        "--url", default="http://127.0.0.1:8000", help="URL of the server (default http://127.0.0.1:8000)."
    )
    trace.add_argument("--key", default="", help="API key that sent the request.")
    trace.add_argument("-o", "--output", type=Path, help="Write a Chrome trace to this file, for ui.perfetto.dev.")
    trace.set_defaults(run=_trace)


def _trace(options: argparse.Namespace) -> None:
    columns = shutil.get_terminal_size().columns
    if options.id is None:
        if options.output:
            raise LoadError("-o needs the id of a request\n  fix: mstar trace ID -o x.json")
        print("\n".join(format_requests(_fetch(options, "/v1/requests")["data"])))
        return
    path = f"/v1/requests/{quote(options.id, safe='')}/trace"
    if not options.output:
        print("\n".join(format_waterfall(_fetch(options, path), columns)))
        return
    chrome_trace = json.dumps(_fetch(options, f"{path}?format=chrome"))
    try:
        options.output.write_text(chrome_trace)
    except OSError as error:
        problem = f"{options.output}: cannot be written: {error.strerror}"
        raise LoadError(f"{problem}\n  fix: choose another path") from error
    print(f"wrote the trace of {options.id} to {options.output}; open it at ui.perfetto.dev")


def _fetch(options: argparse.Namespace, path: str) -> Any:
    """GET a path and decode the JSON response. Raises LoadError."""
    if not options.url.startswith(("http://", "https://")):
        raise LoadError(f"--url {options.url} is not an HTTP URL\n  fix: pass --url http://HOST:PORT")
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    try:
        with urlopen(Request(options.url.rstrip("/") + path, headers=headers), timeout=HTTP_TIMEOUT_S) as response:
            return json.load(response)
    except HTTPError as error:
        with error:
            raise LoadError(_http_error_text(error)) from error
    except (URLError, OSError, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        problem = f"no server at {options.url}: {reason}"
        raise LoadError(f"{problem}\n  fix: start one with `mstar serve`, or pass --url") from error


def _http_error_text(error: HTTPError) -> str:
    try:
        message = json.load(error)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = error.reason
    fix = "pass --key" if error.code == 401 else "run `mstar trace` without an id to list recent requests"
    return f"the server returned status {error.code}: {message}\n  fix: {fix}"


# ---------------------------------------------------------------- text output
def format_requests(requests: Sequence[dict[str, Any]]) -> list[str]:
    """Recent requests as a table."""
    if not requests:
        return ["no requests yet"]
    rows = [("STARTED", "DURATION", "STATUS", "MODEL", "ENDPOINT", "EMISSIONS", "ID")]
    for request in requests:
        started = datetime.fromtimestamp(request["started_at"]).strftime("%H:%M:%S")
        emissions = ", ".join(f"{each['count']} {each['kind']}" for each in request["emissions"]) or "-"
        status = "running" if request["status"] is None else str(request["status"])
        duration = f"{request['seconds']:.3f} s"
        rows.append((started, duration, status, request["model"], request["endpoint"], emissions, request["id"]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def format_waterfall(trace: dict[str, Any], columns: int) -> list[str]:
    """Waterfall of one request: a line with a bar per span, as wide as the terminal."""
    spans = trace["spans"]
    length = max([trace["seconds"], *(span["end"] for span in spans)]) or 1.0
    process = max(len(span["process"]) for span in spans)
    lines = [
        (f"{span['process'].ljust(process)}  {_label(span)}", span["start"], span["end"], _span_details(span))
        for span in spans
    ]
    lines += [
        (f"{'front'.ljust(process)}  {each['kind']}", each["first"][0], each["last"], f"{each['count']} emissions")
        for each in trace["emissions"]
    ]
    left = max(len(label) for label, *_ in lines)
    right = max(len(details) for *_, details in lines)
    width = max(_MIN_BAR_COLUMNS, columns - left - right - 4)
    state = "running" if trace["status"] is None else f"status {trace['status']}"
    head = f"{trace['id']}  {trace['model']} at {trace['endpoint']}, {state}, {trace['seconds']:.3f} s"
    return [head] + [
        f"{label.ljust(left)}  {_bar(start / length, end / length, width)}  {details}".rstrip()
        for label, start, end, details in lines
    ]


def _label(span: dict[str, Any]) -> str:
    depth = {"op": "  ", "transfer": "  ", "walk": " "}.get(span["kind"], "")
    attempt = f" #{span['attempt']}" if span["attempt"] > 1 else ""
    return f"{depth}{span['name']}{attempt}"


def _span_details(span: dict[str, Any]) -> str:
    details = [f"{_format_seconds(span['end'] - span['start'])}"]
    if span["calls"]:
        details.append(f"{span['calls']}×")
    if span["busy"]:
        details.append(f"busy {_format_seconds(span['busy'])}")
    if span["waited"] >= 0.001:
        details.append(f"waited {_format_seconds(span['waited'])}")
    if span["batch"] > 1:
        details.append(f"batch {span['batch']}")
    return " ".join([*details, span["text"]]).rstrip()


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _bar(start: float, end: float, width: int) -> str:
    """A bar between two fractions of the width. It starts at a whole column and ends at an eighth of one."""
    column = min(max(0, int(start * width)), width - 1)  # clocks of two processes can differ slightly
    full, part = divmod(max(1, round((end * width - column) * 8)), 8)
    return (" " * column + "█" * full + _EIGHTHS[part].strip()).ljust(width)
