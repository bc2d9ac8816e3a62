"""`mstar prove MODEL`: run every stage, print the results, and exit with 1 unless all of them pass."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mstar.errors import MstarError

DEFAULT_SCHEDULES = 20


class NotProven(MstarError):
    """A stage has failed."""


def add_prove(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    text = "Prove that a model of your own is served as it runs: schedules, batches, placements, crashes, memory."
    prove = commands.add_parser("prove", help=text, description=text)
    prove.add_argument("model", help="A model's .py file (path.py or path.py:Class) or an installed name.")
    prove.add_argument(
        "--schedules",
        type=int,
        default=DEFAULT_SCHEDULES,
        help=f"Random schedules of each request (default {DEFAULT_SCHEDULES}).",
    )
    prove.add_argument("--card", type=Path, help="Write a model card in Markdown to this file.")
    prove.add_argument("--json", action="store_true", help="Print JSON at the end, and progress to standard error.")
    prove.set_defaults(run=_prove)


def _prove(options: argparse.Namespace) -> None:
    from mstar.cli.prove.model_card import render_card
    from mstar.cli.prove.proof import Proof
    from mstar.cli.prove.subject import Subject

    proof = Proof(Subject(options.model), options.schedules)
    progress = sys.stderr if options.json else sys.stdout
    for result in proof.run():
        line = f"{result.name:<12} {result.state:<8} {result.seconds:>6.1f} s  {result.detail}"
        print(line, file=progress, flush=True)
        if result.fix:
            print(f"  fix: {result.fix}", file=progress, flush=True)
    if options.json:
        print(json.dumps(proof.as_json(), indent=2))
    if options.card is not None:
        options.card.write_text(render_card(proof), encoding="utf-8")
    if not proof.is_proven:
        failed = ", ".join(result.name for result in proof.results if result.state == "failed")
        raise NotProven(f"{options.model} is not proven: {failed}\n  fix: mend the first stage that failed, and repeat")
