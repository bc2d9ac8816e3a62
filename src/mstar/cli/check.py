"""`mstar check MODEL`: trace every walk of a model, and report all problems at once."""

from __future__ import annotations

import argparse
import json
from typing import Any

from mstar.cli.checkpoints.target import resolve_target
from mstar.errors import MstarError, ProblemGroup, format_count, format_site
from mstar.graph import ir
from mstar.walk.load import load_model
from mstar.walk.model import Model

_FIX = "\n  fix: "


def run_check(options: argparse.Namespace) -> None:
    """Check a model. With problems, JSON has each of them with its file, line and fix, and the exit status is 1."""
    try:
        model = load_model(resolve_target(options.model))
        graphs = model.graphs()
    except MstarError as error:
        if options.json:
            _print_json(options.model, {}, _problems(error))
        raise
    walks = {name: _summary(graph) for name, graph in graphs.items()}
    if options.json:
        _print_json(options.model, walks, [])
    else:
        _print_text(model, walks)


def _summary(graph: ir.Walk) -> dict[str, Any]:
    nodes = list(ir.flat(graph.body))
    return {
        "inputs": [value.name for value in graph.inputs],
        "calls": sum(isinstance(node, ir.Call) for node in nodes),
        "emits": sorted({node.kind for node in nodes if isinstance(node, ir.Emit)}),
        "returns": bool(graph.outputs),
    }


def _print_text(model: Model, walks: dict[str, dict[str, Any]]) -> None:
    counts = f"{format_count(len(model.components()), 'component')}, {format_count(len(walks), 'walk')}"
    print(f"{type(model).__name__}: {counts}, no problems")
    for name, walk in walks.items():
        emits, returns = walk["emits"], walk["returns"]
        result = f"emits {', '.join(emits)}" if emits else "returns a value" if returns else "extends states"
        print(f"  {name}({', '.join(walk['inputs'])}): {format_count(walk['calls'], 'call')}, {result}")


def _print_json(target: str, walks: dict[str, dict[str, Any]], problems: list[dict[str, Any]]) -> None:
    print(json.dumps({"model": target, "ok": not problems, "walks": walks, "problems": problems}, indent=2))


def _problems(error: MstarError) -> list[dict[str, Any]]:
    """The problems of an error; file and line are null for a problem of no line."""
    if not isinstance(error, ProblemGroup):
        message, _, fix = str(error).partition(_FIX)
        return [{"file": None, "line": None, "message": message, "fix": fix}]
    problems: list[dict[str, Any]] = []
    for problem in error.problems:
        file, _, line = format_site(problem.site).rpartition(":")
        problems.append({"file": file, "line": int(line), "message": problem.message, "fix": problem.fix})
    return problems
