"""Command `mstar bench serve`: parse flags, run each load level, print the table, write JSON and the report."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mstar.errors import LoadError, MstarError, format_count, format_names

if TYPE_CHECKING:
    from mstar.cli.bench.arrivals import Arrival
    from mstar.cli.bench.driver import Driver
    from mstar.cli.bench.records import LoadRun, RequestRecord
    from mstar.cli.bench.workload import Workload

T = TypeVar("T")

DEFAULT_DURATION_S = 20.0
DEFAULT_CONCURRENCY = [1, 4, 16]
FIX_BY_STATUS = {
    401: "pass a valid API key with --key",
    403: "pass an API key with access to this endpoint with --key",
    404: "pass a served model with a matching endpoint with --model",
    429: "wait until the server has capacity",
    503: "wait until the server is ready",
}
"""Fix to suggest when a warm-up request fails, by HTTP status."""


def add_bench(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Measure a running server."
    bench = commands.add_parser("bench", help=text, description=text)
    verbs = bench.add_subparsers(title="commands", required=True, metavar="COMMAND")
    text = "Load-test a running server, mstar or any OpenAI-compatible one."
    serve = verbs.add_parser("serve", help=text, description=text)
    add = serve.add_argument
    add("url", help="URL of the server: http://host:port.")
    add("--key", default="", help="API key.")
    add("--model", default="", help="Model, or one per kind: speech=hibari,chat=smollm2.")
    what = serve.add_mutually_exclusive_group()
    what.add_argument("--mix", help="Kinds with requests per second: speech=2,chat=4,robot=1@5hz (default chat).")
    what.add_argument("--workload", type=Path, help="Workload as a TOML file.")
    when = serve.add_mutually_exclusive_group()
    when.add_argument(
        "--concurrency",
        type=_list_parser(parse_count),
        help="Closed loop: numbers of concurrent clients, one level each (default 1,4,16).",
    )
    when.add_argument(
        "--rate", type=_list_parser(parse_positive), help="Open loop: requests per second, one level each: 2,4,8."
    )
    when.add_argument(
        "--trace", type=Path, help='Open loop from a trace: JSON lines of {"at": seconds, "kind": "chat"}.'
    )
    add(
        "--burstiness",
        type=parse_positive,
        default=1.0,
        help="Coefficient of variation of the gaps between requests (default 1).",
    )
    add(
        "--seconds",
        type=parse_positive,
        help="Duration of each level in seconds (default 20, or unlimited with --requests).",
    )
    add("--requests", type=parse_count, help="Maximum number of requests per level.")
    add("--warmup", type=parse_count, default=1, help="Warm-up requests per kind, not measured (default 1).")
    add("--slo", nargs="+", default=[], metavar="KIND=SLO", help="SLO per kind: speech=ttft:1.0,continuity:0.1.")
    add("--server-slo", default="", help="Mstar-SLO header per kind: speech=ttft=0.5,images=best_effort.")
    add("--seed", type=int, default=0, help="Random seed of arrival times and prompts (default 0).")
    add("--json", type=Path, help="Write metrics and request records to this JSON file.")
    add("--report", type=Path, help="Write an HTML report with plots to this file.")
    serve.set_defaults(run=_bench_serve)


def parse_positive(text: str) -> float:
    """A finite number above 0. Raises ValueError."""
    if not 0 < float(text) < inf:
        raise ValueError
    return float(text)


def parse_count(text: str) -> int:
    """An integer above 0. Raises ValueError."""
    return int(text) if parse_positive(text) else 0


def _list_parser(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    def parse_list(text: str) -> list[T]:
        return [kind(part) for part in text.split(",")]

    return parse_list


def _bench_serve(options: argparse.Namespace) -> None:
    try:
        asyncio.run(_bench(options))
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[serve,client]'") from error


async def _bench(options: argparse.Namespace) -> None:
    from mstar.cli.bench import metrics, report, table
    from mstar.cli.bench.driver import Driver
    from mstar.cli.bench.http_client import resolve_server

    workload = _read_workload(options)
    driver = Driver(await resolve_server(options.url, options.key), workload, options.seed)
    for kind, traffic in workload.items():
        for _ in range(options.warmup):
            _raise_if_failed(await driver.warm_up(kind), traffic.model)
    slos = {kind: traffic.slo for kind, traffic in workload.items()}
    runs: list[LoadRun] = []
    levels: list[dict[str, Any]] = []
    print(table.format_header())
    async for run in _runs(options, driver, workload):
        runs.append(run)
        levels.append(metrics.run_metrics(run, slos))
        print("\n".join(table.format_run(levels[-1])), flush=True)
    about = {"url": options.url, "seed": options.seed, "burstiness": options.burstiness}
    about["kinds"] = {kind: asdict(traffic) for kind, traffic in workload.items()}
    if options.json:
        with_records = [
            level | {"records": [asdict(record) for record in run.records]}
            for level, run in zip(levels, runs, strict=True)
        ]
        _write(options.json, json.dumps(about | {"levels": with_records}))
    if options.report:
        _write(options.report, report.render_report(about, levels, runs))
    _raise_on_failures(runs)


def _read_workload(options: argparse.Namespace) -> Workload:
    from mstar.cli.bench.workload import apply_flags, parse_mix, read_workload, workload_of_kinds

    workload: Workload = {}
    if options.workload:
        workload = read_workload(options.workload)
    elif options.mix or not options.trace:
        workload = parse_mix(options.mix or "chat")
    if options.trace:
        models = {each.kind: each.overrides.get("model", "") for each in _read_trace(options)}
        traced = workload_of_kinds(models)
        workload = {kind: replace(traffic, model=models[kind]) for kind, traffic in traced.items()} | workload
    return apply_flags(workload, options.model, options.slo, options.server_slo)


def _read_trace(options: argparse.Namespace, seconds: float = inf) -> list[Arrival]:
    """The requests of a trace; with --model, captured ones are sent to that model."""
    from mstar.cli.bench.arrivals import read_trace, without_models
    from mstar.cli.bench.request_kinds import REQUEST_KINDS

    return without_models(read_trace(options.trace, REQUEST_KINDS, seconds), options.model)


async def _runs(options: argparse.Namespace, driver: Driver, workload: Workload) -> AsyncIterator[LoadRun]:
    """Run one load level after the other."""
    from mstar.cli.bench.arrivals import make_arrivals
    from mstar.cli.bench.request_kinds import REQUEST_KINDS
    from mstar.cli.bench.workload import ROBOT

    rates = {kind: traffic.number for kind, traffic in workload.items() if kind in REQUEST_KINDS}
    seconds = options.seconds or (inf if options.trace or (options.requests and rates) else DEFAULT_DURATION_S)
    if options.trace:
        arrivals = _read_trace(options, seconds)[: options.requests]
        duration = min(seconds, max(arrivals[-1].at, 1.0))
        yield await driver.run_open_loop(len(arrivals) / duration, arrivals, duration)
    elif options.rate or not (options.concurrency or None in rates.values()):
        shares = {kind: number or 1.0 for kind, number in rates.items()}
        total = sum(shares.values())
        for rate in options.rate or [total or workload[ROBOT].number or 1.0]:
            scaled = {kind: number * rate / total for kind, number in shares.items()}
            arrivals = make_arrivals(scaled, options.burstiness, options.seed, seconds, options.requests)
            duration = arrivals[-1].at if len(arrivals) == options.requests else seconds
            yield await driver.run_open_loop(rate, arrivals, duration)
    else:
        for clients in options.concurrency or DEFAULT_CONCURRENCY:
            yield await driver.run_closed_loop(clients, seconds, options.requests or inf)


def _raise_if_failed(record: RequestRecord, model: str) -> None:
    """Raise MstarError for a failed warm-up request: every later request would fail too."""
    if record.error:
        fix = FIX_BY_STATUS.get(record.status, "see the log of the server")
        raise MstarError(f"the warm-up request {record.kind} for `{model}` failed: {record.error}\n  fix: {fix}")


def _raise_on_failures(runs: list[LoadRun]) -> None:
    """Raise MstarError if requests failed for another reason than overload."""
    failed = [record.error for run in runs for record in run.records if record.is_failed]
    if failed:
        problem = f"{format_count(len(failed), 'request')} failed: {format_names(dict.fromkeys(failed[:3]))}"
        raise MstarError(f"{problem}\n  fix: see the log of the server, or reduce the load")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise LoadError(f"{path}: cannot be written: {error.strerror}\n  fix: choose another path") from error
    print(f"wrote {path}")
