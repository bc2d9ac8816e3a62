"""`mstar conformance`: which calls are tried, what is said of each, and the table. The calls are in the other files."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError, MstarError, counted, listed

if TYPE_CHECKING:
    from mstar.cli.conformance.site import Check, Row, Site

PARTS = ("doors", "chat", "vectors", "sound", "hearing", "pictures", "talking", "robots")
"""The files with calls, in the order in which they are tried."""
COLUMNS = "{:<28} {:<20} {:<10} {:>7}  {}"


def add_conformance(commands: Any) -> None:
    """Add the command to a parser."""
    text = "try a running server with the client libraries that people use"
    conformance = commands.add_parser("conformance", help=text, description=text)
    conformance.add_argument("url", help="where the server is: http://host:port")
    conformance.add_argument("--key", default="", help="an API key")
    conformance.add_argument("--model", help="which model; without it, all that are served")
    conformance.add_argument("--openpi-python", type=Path, help="a python that has openpi-client, to try that too")
    conformance.add_argument("--json", action="store_true", help="print JSON instead of a table")
    conformance.set_defaults(run=_conformance)


def _conformance(options: argparse.Namespace) -> None:
    try:
        from mstar.cli.conformance.site import Site

        parts = [importlib.import_module(f"mstar.cli.conformance.{part}") for part in PARTS]
    except ModuleNotFoundError as error:
        what = f"`{error.name}` is not installed, and a server is tried with it"
        raise LoadError(f"{what}\n  fix: pip install 'mstar-serve[client]' 'openai>=3.49' websockets") from error
    checks = [check for part in parts for check in part.CHECKS]
    rows: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the libraries, which are not ours to mend
        for site in Site.each(options.url, options.key, options.model, options.openpi_python):
            if not options.json:
                print(
                    f"{site.model} at {options.url}\n{COLUMNS.format('surface', 'call', 'result', 'ms', '').rstrip()}"
                )
            for row in _tried(site, checks):
                rows.append({"model": site.model, **asdict(row)})
                if not options.json:
                    note = row.note.partition("\n")[0][:100]
                    print(COLUMNS.format(row.surface, row.call, row.result, f"{row.ms:.0f}", note).rstrip(), flush=True)
            site.close()
    _end(options, rows)


def _tried(site: Site, checks: Sequence[Check]) -> Iterator[Row]:
    """Every call of what a model offers; of what it does not offer, one, to see that it says so."""
    refused: set[str] = set()
    for check in checks:
        if not check.surface or check.surface in site.surfaces:
            yield site.attempt(check)
        elif check.surface not in refused:
            refused.add(check.surface)
            yield site.attempt_unserved(check)


def _end(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    failed = [f"{row['call']}" for row in rows if row["result"] == "failed"]
    if options.json:
        json.dump({"url": options.url, "calls": rows, "failed": len(failed)}, sys.stdout, indent=2)
        print()
    else:
        counts = {result: sum(row["result"] == result for row in rows) for result in ("ok", "failed", "not served")}
        print(", ".join(f"{count} {result}" for result, count in counts.items()))
    if failed:
        what = f"{counted(len(failed), 'call')} failed: {listed(failed)}"
        raise MstarError(f"{what}\n  fix: see the notes, and the server's log under the ids of the requests")
