"""`mstar bench serve`: its flags, the table that it prints while it runs, and what it says when something is wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mstar.errors import LoadError, MstarError, format_count, format_names

if TYPE_CHECKING:
    from mstar.cli.bench.driver import Driver
    from mstar.cli.bench.records import LoadRun, RequestRecord
    from mstar.cli.bench.workload import Workload

T = TypeVar("T")

DEFAULT_DURATION_S = 20.0
DEFAULT_CONCURRENCY = [1, 4, 16]
FIX_BY_STATUS = {
    401: "pass a key that the server knows: --key",
    403: "pass a key that may do this: --key",
    404: "name a model that it serves, for what it serves: --model",
    429: "wait until others have been served",
    503: "wait until it is ready",
}
"""What to do when the first request of all is refused."""


def add_bench(commands: Any) -> None:
    """Add the command to a parser."""
    text = "measure a running server"
    bench = commands.add_parser("bench", help=text, description=text)
    verbs = bench.add_subparsers(title="commands", required=True, metavar="COMMAND")
    text = "put a load on a running server, ours or one like OpenAI's, and say how its answers came"
    serve = verbs.add_parser("serve", help=text, description=text)
    add = serve.add_argument
    add("url", help="where the server is: http://host:port")
    add("--key", default="", help="an API key")
    add("--model", default="", help="which model is asked; for each kind: speech=hibari,chat=smollm2")
    what = serve.add_mutually_exclusive_group()
    what.add_argument("--mix", help="what is asked, how many a second: speech=2,chat=4,robot=1@5hz (chat)")
    what.add_argument("--workload", type=Path, help="the same and more in a TOML file")
    when = serve.add_mutually_exclusive_group()
    when.add_argument(
        "--concurrency", type=_list_parser(parse_count), help="so many clients who wait for answers, in turn (1,4,16)"
    )
    when.add_argument(
        "--rate", type=_list_parser(parse_positive), help="so many requests a second, whatever comes back: 2,4,8"
    )
    when.add_argument("--trace", type=Path, help='when to ask: lines of {"at": seconds, "kind": "chat"}')
    add(
        "--burstiness", type=parse_positive, default=1.0, help="spread of the gaps between requests over their mean (1)"
    )
    add("--seconds", type=parse_positive, help="for how long each load is put on (20, unless --requests)")
    add("--requests", type=parse_count, help="how many requests of each load, at most")
    add("--warmup", type=parse_count, default=1, help="requests of each kind before that, which are not counted (1)")
    add("--slo", nargs="+", default=[], metavar="KIND=SLO", help="what is wanted: speech=first:1.0,continuity:0.1")
    add("--server-slo", default="", help="what a server of ours is told to promise: speech=ttft=0.5,images=best_effort")
    add("--seed", type=int, default=0, help="of times and texts (0)")
    add("--json", type=Path, help="write figures and records to this file")
    add("--report", type=Path, help="write a page with plots to this file")
    serve.set_defaults(run=_bench_serve)


def parse_positive(text: str) -> float:
    """A number above 0, and not without end."""
    if not 0 < float(text) < inf:
        raise ValueError
    return float(text)


def parse_count(text: str) -> int:
    """A whole number above 0."""
    return int(text) if parse_positive(text) else 0


def _list_parser(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    def numbers(text: str) -> list[T]:
        return [kind(part) for part in text.split(",")]

    return numbers


def _bench_serve(options: argparse.Namespace) -> None:
    try:
        asyncio.run(_bench(options))
    except ModuleNotFoundError as error:
        what = f"`{error.name}` is not installed"
        raise LoadError(f"{what}\n  fix: pip install 'mstar-serve[serve,client]'") from error


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
    told: list[dict[str, Any]] = []
    print(table.format_header())
    async for run in _runs(options, driver, workload):
        runs.append(run)
        told.append(metrics.run_metrics(run, slos))
        print("\n".join(table.format_run(told[-1])), flush=True)
    about = {"url": options.url, "seed": options.seed, "burstiness": options.burstiness}
    about["kinds"] = {kind: asdict(traffic) for kind, traffic in workload.items()}
    if options.json:
        levels = [
            one | {"records": [asdict(record) for record in run.records]} for one, run in zip(told, runs, strict=True)
        ]
        _write(options.json, json.dumps(about | {"levels": levels}))
    if options.report:
        _write(options.report, report.render_report(about, told, runs))
    _raise_on_failures(runs)


def _read_workload(options: argparse.Namespace) -> Workload:
    from mstar.cli.bench.arrivals import read_trace
    from mstar.cli.bench.request_kinds import REQUEST_KINDS
    from mstar.cli.bench.workload import apply_flags, parse_mix, read_workload, workload_of_kinds

    given: Workload = {}
    if options.workload:
        given = read_workload(options.workload)
    elif options.mix or not options.trace:
        given = parse_mix(options.mix or "chat")
    if options.trace:
        given = workload_of_kinds(dict.fromkeys(one.kind for one in read_trace(options.trace, REQUEST_KINDS))) | given
    return apply_flags(given, options.model, options.slo, options.server_slo)


async def _runs(options: argparse.Namespace, driver: Driver, workload: Workload) -> AsyncIterator[LoadRun]:
    """Every load in turn."""
    from mstar.cli.bench.arrivals import make_arrivals, read_trace
    from mstar.cli.bench.request_kinds import REQUEST_KINDS
    from mstar.cli.bench.workload import ROBOT

    rates = {kind: one.number for kind, one in workload.items() if kind in REQUEST_KINDS}
    seconds = options.seconds or (inf if options.trace or (options.requests and rates) else DEFAULT_DURATION_S)
    if options.trace:
        times = read_trace(options.trace, REQUEST_KINDS, seconds)[: options.requests]
        lasts = min(seconds, max(times[-1].at, 1.0))
        yield await driver.run_open_loop(len(times) / lasts, times, lasts)
    elif options.rate or not (options.concurrency or None in rates.values()):
        shares = {kind: number or 1.0 for kind, number in rates.items()}
        whole = sum(shares.values())
        for rate in options.rate or [whole or workload[ROBOT].number or 1.0]:
            scaled = {kind: number * rate / whole for kind, number in shares.items()}
            times = make_arrivals(scaled, options.burstiness, options.seed, seconds, options.requests)
            yield await driver.run_open_loop(rate, times, times[-1].at if len(times) == options.requests else seconds)
    else:
        for clients in options.concurrency or DEFAULT_CONCURRENCY:
            yield await driver.run_closed_loop(clients, seconds, options.requests or inf)


def _raise_if_failed(record: RequestRecord, model: str) -> None:
    """Say at once what would go wrong with every request."""
    if record.error:
        fix = FIX_BY_STATUS.get(record.status, "see the server's log")
        raise MstarError(f"the first request for {record.kind}, of `{model}`, failed: {record.error}\n  fix: {fix}")


def _raise_on_failures(runs: list[LoadRun]) -> None:
    """Raise if something went wrong that is not a matter of load."""
    failed = [record.error for run in runs for record in run.records if record.is_failed]
    if failed:
        what = f"{format_count(len(failed), 'request')} failed: {format_names(dict.fromkeys(failed[:3]))}"
        raise MstarError(f"{what}\n  fix: see the server's log, or put less load on it")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise LoadError(f"{path}: cannot be written: {error.strerror}\n  fix: choose another place") from error
    print(f"wrote {path}")
