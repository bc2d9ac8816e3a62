"""`mstar plan-capacity MODEL --profile P`: the cheapest placement that holds an SLO, by simulation of the cores."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.cli.bench.command import parse_count, parse_positive
from mstar.errors import LoadError, MstarError

if TYPE_CHECKING:
    from mstar.cli.bench.arrivals import Arrival
    from mstar.cli.bench.records import SloTarget
    from mstar.cli.capacity.evaluation import Evaluation
    from mstar.plan.profile import ModelProfile

DEFAULT_SECONDS = 60.0
MODEL_NAME = "model"


class NoPlacement(MstarError):
    """No placement within the limits holds the SLO."""


def add_plan_capacity(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Find the cheapest placement of a model that holds an SLO, by simulation with the costs of a profile."
    plan = commands.add_parser("plan-capacity", help=text, description=text)
    add = plan.add_argument
    add("model", help="A model's .py file (path.py or path.py:Class), an installed name, or a checkpoint.")
    add(
        "--profile",
        type=Path,
        nargs="+",
        required=True,
        help="Profile that `mstar profile` wrote. Further ones add the devices of other machines.",
    )
    what = plan.add_mutually_exclusive_group(required=True)
    what.add_argument("--mix", help="Kinds with requests per second: speech=2,chat=4.")
    what.add_argument("--traffic", type=Path, help='Arrival log: JSON lines of {"at": seconds, "kind": "chat"}.')
    add("--rate", type=parse_positive, help="Requests per second in total, instead of those of --mix.")
    add("--burstiness", type=parse_positive, default=1.0, help="Coefficient of variation of the gaps (default 1).")
    add("--seconds", type=parse_positive, default=DEFAULT_SECONDS, help="Simulated seconds (default 60).")
    add("--slo", nargs="+", default=[], metavar="KIND=SLO", help="SLO per kind: speech=ttft:1.0,continuity:0.1.")
    add("--target", type=parse_positive, default=0.99, help="Share of requests that must meet it (default 0.99).")
    add("--prices", type=Path, required=True, help='TOML file: currency = "USD" and [per_hour] with a price by device.')
    add("--batch-limits", default="64", help="Values of max_batch_size to try, in order (default 64): 64,16,4.")
    add("--max-workers", type=parse_count, default=16, help="Maximum number of workers (default 16).")
    add("--max-candidates", type=parse_count, default=40, help="Maximum number of placements to simulate (default 40).")
    add("--seed", type=int, default=0, help="Random seed of arrival times (default 0).")
    add("-o", "--output", type=Path, help="Write the cheapest placement that holds the SLO to this TOML file.")
    add("--plot", type=Path, help="Write the Pareto front to this SVG file.")
    add("--json", type=Path, help="Write all evaluated placements to this JSON file.")
    plan.set_defaults(run=_plan_capacity)


def _plan_capacity(options: argparse.Namespace) -> None:
    from mstar.cli.capacity.evaluation import Evaluator
    from mstar.cli.capacity.report import format_plan, placement_file, plot, to_json
    from mstar.cli.capacity.search import SearchLimits, search
    from mstar.cli.capacity.traffic import plan_traffic
    from mstar.cli.checkpoints.target import resolve_target
    from mstar.cli.output import require_writable
    from mstar.plan.compile import plan
    from mstar.plan.planned_model import PlannedModel
    from mstar.sim.profile.profile_replay import require_same_walks
    from mstar.walk.load import load_model

    for path in filter(None, (options.output, options.plot, options.json)):
        require_writable(path)
    currency, prices = read_prices(options.prices)
    model = load_model(resolve_target(options.model))
    profile = _read_profiles(options.profile)
    require_same_walks(profile, PlannedModel(model, plan(model.graphs())))
    arrivals, slos = _read_traffic(options)
    traffic = plan_traffic(profile, arrivals, slos, options.seed)
    sizes = [int(size) for size in options.batch_limits.split(",")]
    limits = SearchLimits(options.target, sizes, options.max_workers, options.max_candidates)
    evaluator = Evaluator(model, profile, traffic, prices)
    result = search(evaluator, profile, traffic, prices, limits, _print_progress)
    if result.evaluations:
        print(format_plan(result, profile, currency, options.target))
    if result.evaluations and options.plot:
        _write(options.plot, plot(result, currency))
    if options.json:
        _write(options.json, json.dumps(to_json(result, profile), indent=2))
    if not result.evaluations:
        fix = "raise --max-workers, or reduce the traffic"
        raise NoPlacement(f"the traffic keeps more than {options.max_workers} workers busy\n  fix: {fix}")
    if result.best is None:
        fix = "raise --max-workers or --max-candidates, or relax --slo or --target"
        raise NoPlacement(f"no placement of {len(result.evaluations)} holds the SLO\n  fix: {fix}")
    if options.output:
        source = f"{len(arrivals)} requests in {traffic.seconds:.0f} s"
        _write(options.output, placement_file(result.best, profile, source, currency))


def _print_progress(evaluation: Evaluation) -> None:
    share = f"{100 * evaluation.attainment.value:.1f} %"
    print(f"simulated {evaluation.candidate}: SLO met by {share}", file=sys.stderr, flush=True)


def _read_profiles(paths: list[Path]) -> ModelProfile:
    from mstar.plan.profile import ModelProfile
    from mstar.plan.profile_merge import merge_profiles

    return merge_profiles([ModelProfile.load(path) for path in paths])


def _read_traffic(options: argparse.Namespace) -> tuple[list[Arrival], Mapping[str, SloTarget]]:
    from mstar.cli.bench.arrivals import make_arrivals, read_trace
    from mstar.cli.bench.request_kinds import REQUEST_KINDS
    from mstar.cli.bench.workload import apply_flags, parse_mix, workload_of_kinds

    if options.traffic:
        arrivals = read_trace(options.traffic, REQUEST_KINDS, options.seconds)
        workload = workload_of_kinds(dict.fromkeys(arrival.kind for arrival in arrivals))
    else:
        workload = parse_mix(options.mix)
        rates = {kind: traffic.number or 1.0 for kind, traffic in workload.items()}
        if options.rate:
            rates = {kind: rate * options.rate / sum(rates.values()) for kind, rate in rates.items()}
        arrivals = make_arrivals(rates, options.burstiness, options.seed, options.seconds, sys.maxsize)
    if not arrivals:
        raise LoadError(f"no request arrives in {options.seconds:g} s\n  fix: raise --rate or --seconds")
    workload = apply_flags(workload, MODEL_NAME, options.slo, "")
    return arrivals, {kind: traffic.slo for kind, traffic in workload.items()}


def read_prices(path: Path) -> tuple[str, dict[str, float]]:
    """Currency, and price per hour by device. Raises LoadError."""
    fix = 'write:\n    currency = "USD"\n    [per_hour]\n    cpu = 0.10'
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}\n  fix: {fix}") from error
    except ValueError as error:
        raise LoadError(f"{path}: {error}\n  fix: {fix}") from error
    prices: Any = table.get("per_hour")
    is_valid = (
        isinstance(prices, dict)
        and prices
        and all(isinstance(price, int | float) and price > 0 for price in prices.values())
    )
    if not is_valid or table.keys() - {"currency", "per_hour"}:
        raise LoadError(f"{path}: [per_hour] must have a price above 0 by device\n  fix: {fix}")
    return str(table.get("currency", "USD")), {str(name): float(price) for name, price in prices.items()}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise LoadError(f"{path}: cannot be written: {error.strerror}\n  fix: choose another path") from error
    print(f"wrote {path}")
