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

from mstar.errors import LoadError, MstarError, format_count, format_names

if TYPE_CHECKING:
    from mstar.cli.conformance.target import Check, CheckResult, ConformanceTarget

CHECK_MODULES = ("basics", "chat", "embeddings", "speech", "transcriptions", "images", "realtime", "robots")
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
        from mstar.cli.conformance.target import ConformanceTarget

        parts = [importlib.import_module(f"mstar.cli.conformance.{part}") for part in CHECK_MODULES]
    except ModuleNotFoundError as error:
        what = f"`{error.name}` is not installed, and a server is tried with it"
        raise LoadError(f"{what}\n  fix: pip install 'mstar-serve[client]' 'openai>=3.49' websockets") from error
    checks = [check for part in parts for check in part.CHECKS]
    rows: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the libraries, which are not ours to mend
        for site in ConformanceTarget.find_targets(options.url, options.key, options.model, options.openpi_python):
            if not options.json:
                print(
                    f"{site.model} at {options.url}\n{COLUMNS.format('endpoint', 'call', 'result', 'ms', '').rstrip()}"
                )
            for row in _run_checks(site, checks):
                rows.append({"model": site.model, **asdict(row)})
                if not options.json:
                    note = row.note.partition("\n")[0][:100]
                    print(
                        COLUMNS.format(row.endpoint, row.call, row.result, f"{row.ms:.0f}", note).rstrip(), flush=True
                    )
            site.close()
    _print_summary(options, rows)


def _run_checks(site: ConformanceTarget, checks: Sequence[Check]) -> Iterator[CheckResult]:
    """Every call of what a model offers; of what it does not offer, one, to see that it says so."""
    refused: set[str] = set()
    for check in checks:
        if not check.endpoint or check.endpoint in site.endpoints:
            yield site.run_check(check)
        elif check.endpoint not in refused:
            refused.add(check.endpoint)
            yield site.run_unsupported(check)


def _print_summary(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    failed = [f"{row['call']}" for row in rows if row["result"] == "failed"]
    if options.json:
        json.dump({"url": options.url, "calls": rows, "failed": len(failed)}, sys.stdout, indent=2)
        print()
    else:
        counts = {result: sum(row["result"] == result for row in rows) for result in ("ok", "failed", "not served")}
        print(", ".join(f"{count} {result}" for result, count in counts.items()))
    if failed:
        what = f"{format_count(len(failed), 'call')} failed: {format_names(failed)}"
        raise MstarError(f"{what}\n  fix: see the notes, and the server's log under the ids of the requests")
