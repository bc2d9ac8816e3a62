"""Command `mstar conformance`: select checks, run them, print the table. The checks are in the other modules."""

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

CHECK_MODULES = (
    "basics",
    "chat",
    "responses",
    "embeddings",
    "speech",
    "transcriptions",
    "images",
    "realtime",
    "robots",
)
"""Modules with checks, in the order in which they run."""
COLUMNS = "{:<28} {:<20} {:<10} {:>7}  {}"


def add_conformance(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Test a running server with the official OpenAI and openpi clients."
    conformance = commands.add_parser("conformance", help=text, description=text)
    conformance.add_argument("url", help="URL of the server: http://host:port.")
    conformance.add_argument("--key", default="", help="API key.")
    conformance.add_argument("--model", help="Model to test (default: all served models).")
    conformance.add_argument(
        "--openpi-python", type=Path, help="Python interpreter with openpi-client, for the openpi checks."
    )
    conformance.add_argument("--json", action="store_true", help="Print JSON.")
    conformance.set_defaults(run=_conformance)


def _conformance(options: argparse.Namespace) -> None:
    try:
        from mstar.cli.conformance.target import ConformanceTarget

        modules = [importlib.import_module(f"mstar.cli.conformance.{name}") for name in CHECK_MODULES]
    except ModuleNotFoundError as error:
        raise LoadError(
            f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[client]' 'openai>=3.49' websockets"
        ) from error
    checks = [check for module in modules for check in module.CHECKS]
    rows: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised inside the client libraries
        for target in ConformanceTarget.find_targets(options.url, options.key, options.model, options.openpi_python):
            if not options.json:
                print(
                    f"{target.model} at {options.url}\n"
                    + COLUMNS.format("endpoint", "check", "result", "ms", "").rstrip()
                )
            for row in _run_checks(target, checks):
                rows.append({"model": target.model, **asdict(row)})
                if not options.json:
                    note = row.note.partition("\n")[0][:100]
                    print(
                        COLUMNS.format(row.endpoint, row.call, row.result, f"{row.ms:.0f}", note).rstrip(), flush=True
                    )
            target.close()
    _print_summary(options, rows)


def _run_checks(target: ConformanceTarget, checks: Sequence[Check]) -> Iterator[CheckResult]:
    """All checks of the endpoints a model supports, and one of each other endpoint, which must return an error."""
    unsupported: set[str] = set()
    for check in checks:
        if not check.endpoint or check.endpoint in target.endpoints:
            yield target.run_check(check)
        elif check.endpoint not in unsupported:
            unsupported.add(check.endpoint)
            yield target.run_unsupported(check)


def _print_summary(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    failed = [f"{row['call']}" for row in rows if row["result"] == "failed"]
    if options.json:
        json.dump({"url": options.url, "calls": rows, "failed": len(failed)}, sys.stdout, indent=2)
        print()
    else:
        counts = {result: sum(row["result"] == result for row in rows) for result in ("ok", "failed", "not served")}
        print(", ".join(f"{count} {result}" for result, count in counts.items()))
    if failed:
        problem = f"{format_count(len(failed), 'check')} failed: {format_names(failed)}"
        raise MstarError(f"{problem}\n  fix: see the notes above, and the log of the server by request id")
