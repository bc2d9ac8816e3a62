"""Entry point of the `mstar` command line, with `draw` and `plan`, which show a model without serving it.

Every other command has its own file. A command takes a model's .py file or an installed name. An expected error
(`MstarError`) is printed to standard error without a traceback, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mstar import __version__
from mstar.cli.bench import add_bench
from mstar.cli.capacity import add_plan_capacity, add_profile
from mstar.cli.capture import add_capture
from mstar.cli.check import run_check
from mstar.cli.checkpoints.target import resolve_target
from mstar.cli.completion import add_completion
from mstar.cli.compress import add_compress
from mstar.cli.config import add_config
from mstar.cli.conformance import add_conformance
from mstar.cli.diff import add_diff
from mstar.cli.doctor import add_doctor
from mstar.cli.gpu_report import add_gpu_report
from mstar.cli.index import add_index
from mstar.cli.memory_plan import describe_devices, find_sizes, parse_bytes, plan_devices, require_fit
from mstar.cli.models import add_models
from mstar.cli.new_model import add_new
from mstar.cli.port import add_port
from mstar.cli.prove import add_prove
from mstar.cli.run import add_run
from mstar.cli.serving.serve import add_serve
from mstar.cli.serving.twin import add_twin
from mstar.cli.session import add_session
from mstar.cli.sim import add_sim
from mstar.cli.top import add_top
from mstar.cli.trace import add_trace
from mstar.errors import LoadError, MstarError, format_names, suggest_name
from mstar.graph import ir
from mstar.graph.text import render
from mstar.plan.compile import plan
from mstar.plan.describe import describe
from mstar.plan.placement import Placement, read_placement
from mstar.walk.load import load_model

MODEL_HELP = "A model's .py file (path.py or path.py:Class), an installed name, or a checkpoint (folder or .gguf file)."
SERVE_PACKAGES = ("msgspec", "numpy", "PIL", "prometheus_client", "pydantic", "python_multipart", "soundfile", "soxr")
SERVE_PACKAGES += ("h11", "httptools", "rich", "starlette", "uvicorn", "websockets")
"""Packages of the extra `serve`. Commands that do not serve run without them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status of the process."""
    parser = _make_parser()
    options, rest = parser.parse_known_args(arguments)
    if "input" in options and all(word == "-" or not word.startswith("-") for word in rest):
        options.input += rest  # argparse does not accept positional arguments after a flag
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options.run(options)
    except MstarError as error:
        print(error, file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in SERVE_PACKAGES:
            raise
        print(f"`{missing}` is not installed\n  fix: pip install 'mstar-serve[serve]'", file=sys.stderr)
        return 1
    return 0


_COMMANDS = (
    add_serve,
    add_twin,
    add_config,
    add_models,
    add_new,
    add_port,
    add_prove,
    add_run,
    add_index,
    add_compress,
    add_doctor,
    add_gpu_report,
    add_top,
    add_completion,
    add_sim,
    add_conformance,
    add_diff,
    add_bench,
    add_capture,
    add_profile,
    add_plan_capacity,
    add_trace,
    add_session,
)
"""Adds a command each, in the order of the help."""


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mstar", description="Serve composite AI models.")
    parser.add_argument("--version", action="version", version=f"mstar {__version__}", help="Print the version.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument("model", help=MODEL_HELP)
        return added

    check = command("check", "Trace every walk of a model and report all problems.")
    check.add_argument("--json", action="store_true", help="Print JSON.")
    check.set_defaults(run=run_check)
    draw = command("draw", "Draw the graph of a walk.")
    draw.add_argument("--walk", help="Name of the walk (default: the only one).")
    draw.add_argument(
        "--placement", type=Path, help="Placement file. Colors show workers; edges between workers are marked."
    )
    draw.add_argument("-o", "--output", type=Path, required=True, help="Output file: x.svg, x.mmd, x.json or x.txt.")
    draw.set_defaults(run=_draw)
    show = command("plan", "Show which op runs on which worker, what crosses workers, and what can be batched.")
    show.add_argument("--placement", type=Path, help="Placement file (default: one worker runs everything).")
    show.add_argument(
        "--device-memory",
        type=_bytes,
        metavar="SIZE",
        help="Show instead what the components need on devices of this size, for example 80GB, and the KV cache pages "
        "that fit. MODEL is then a published model, such as llama-3.1-8b, or the folder of a causal language model "
        "with config.json. No weights are needed.",
    )
    show.set_defaults(run=_plan)
    for add in _COMMANDS:
        add(commands)
    return parser


def _draw(options: argparse.Namespace) -> None:
    from mstar.draw import to_json, to_mermaid, to_picture, to_svg  # imported here: a server starts without it

    graphs = load_model(resolve_target(options.model)).graphs()
    graph = _find_walk(graphs, options.walk)
    placement = read_placement(options.placement) if options.placement else None
    if placement is not None:
        placement.check(graphs, str(options.placement))
    workers = _workers_by_op(graph, placement) if placement is not None else None
    renderers = {
        ".svg": lambda: to_svg(to_picture(graph, workers)),
        ".json": lambda: to_json(to_picture(graph, workers)),
        ".mmd": lambda: to_mermaid(graph, workers),
        ".txt": lambda: render(graph),
    }
    suffix = options.output.suffix
    if suffix not in renderers:
        raise LoadError(
            f"{options.output}: unsupported format `{suffix or 'none'}`\n  fix: use one of {format_names(renderers)}"
        )
    try:
        options.output.write_text(renderers[suffix]())
    except OSError as error:
        raise LoadError(f"{options.output}: cannot be written: {error.strerror}\n  fix: choose another path") from error
    print(f"drew walk {graph.name} to {options.output}")


def _find_walk(graphs: dict[str, ir.Walk], name: str | None) -> ir.Walk:
    if name is None and len(graphs) == 1:
        return next(iter(graphs.values()))
    if not graphs:
        raise LoadError("the model has no walk\n  fix: mark a method with @walk")
    if name is None:
        raise LoadError(f"the model has several walks: {format_names(graphs)}\n  fix: pass --walk {next(iter(graphs))}")
    if name not in graphs:
        raise LoadError(
            f"the model has no walk `{name}`{suggest_name(name, graphs)}\n"
            f"  fix: pass --walk with one of {format_names(graphs)}"
        )
    return graphs[name]


def _workers_by_op(graph: ir.Walk, placement: Placement) -> dict[str, tuple[str, ...]]:
    calls = {(node.component, node.op) for node in ir.flat(graph.body) if isinstance(node, ir.Call)}
    rules = {f"{component}.{op}": placement.rule(graph.name, component, op) for component, op in calls}
    return {key: rule.workers for key, rule in rules.items() if rule is not None}


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _plan(options: argparse.Namespace) -> None:
    if options.device_memory is not None:
        _plan_memory(options)
        return
    graphs = load_model(resolve_target(options.model)).graphs()
    placement = read_placement(options.placement) if options.placement else None
    if placement is not None:
        placement.check(graphs, str(options.placement))
    print(describe(plan(graphs, placement), graphs), end="")


def _plan_memory(options: argparse.Namespace) -> None:
    sizes = find_sizes(options.model)
    placement = read_placement(options.placement) if options.placement else None
    plans = plan_devices(sizes, options.device_memory, placement)
    if not plans:
        raise LoadError(f"{options.placement}: no worker with a device has weights\n  fix: add `device` to a worker")
    print(describe_devices(plans), end="")
    require_fit(plans)
