"""`mstar config explain`: every setting of a server, what it is for, and who chose it. It starts nothing.

What `mstar serve` is told is put together here too, so that both mean the same.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.cli.serving.settings import HIDDEN_TEXT, ResolvedSettings, add_flags, check_variables
from mstar.errors import LoadError, PlacementError, Problem
from mstar.walk.load import default_model_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mstar.cli.serving.manifest import Manifest, ModelEntry

TARGET_HELP = (
    "a manifest (.toml), a model's .py file (path.py or path.py:Class), or an installed name; @PATH: its weights"
)


def add_config(commands: Any) -> None:
    """Add the command to a parser."""
    text = "look at the settings of a server"
    verbs = commands.add_parser("config", help=text, description=text).add_subparsers(
        title="commands", required=True, metavar="COMMAND"
    )
    text = "say what every setting is, who chose it, and what it is for"
    explain = verbs.add_parser("explain", help=text, description=text)
    add_target(explain, is_needed=False)
    explain.add_argument("--json", action="store_true", help="for programs")
    explain.set_defaults(run=_explain)


def add_target(parser: argparse.ArgumentParser, *, is_needed: bool) -> None:
    """Add what says which models are served, and how."""
    parser.add_argument("target", metavar="MODEL", nargs=None if is_needed else "?", help=TARGET_HELP)
    parser.add_argument("--name", help="what clients call a model that is served by itself (the name of its file)")
    parser.add_argument("--placement", type=Path, help="its placement file; without one, everything is on one worker")
    add_flags(parser)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What is served, and how."""

    resolved: ResolvedSettings
    manifest: Manifest | None
    models: dict[str, str]
    """By name, what `load_model` is given."""
    placements: dict[str, str]
    """By name, the text of a placement file; empty for none."""


def resolve_config(options: argparse.Namespace) -> ServeConfig:
    """All that flags, environment and a manifest say. Raises MstarError."""
    from mstar.cli.serving.manifest import Manifest  # its library is for those who serve
    from mstar.config import ENV_PREFIX, env_variables

    target, found = options.target, env_variables()
    manifest = Manifest(Path(target)) if target is not None and target.endswith(".toml") else None
    named = [f"{holder.env}" for holder in manifest.tenants] if manifest else []
    check_variables(found, frozenset(name for name in named if name.startswith(ENV_PREFIX)))
    resolved = ResolvedSettings(vars(options), found, manifest)
    if manifest is None:
        name = options.name or default_model_name(target or "")
        models = {name: target} if target else {}
        return ServeConfig(resolved, None, models, {name: _read_text(options.placement)} if options.placement else {})
    if options.name or options.placement:
        raise LoadError(f"--name and --placement are for one model\n  fix: say it in {target}, under [models.x]")
    models = {name: _model_target(manifest, entry.model) for name, entry in manifest.models.items()}
    placements = {name: _placement_text(manifest, name, entry) for name, entry in manifest.models.items()}
    return ServeConfig(resolved, manifest, models, placements)


def _model_target(manifest: Manifest, model: str) -> str:
    return manifest.resolve_path(model) if model.partition("@")[0].partition(":")[0].endswith(".py") else model


def _placement_text(manifest: Manifest, name: str, entry: ModelEntry) -> str:
    from mstar.cli.serving.manifest import to_placement_text
    from mstar.plan.placement import parse_placement

    is_inline = bool(entry.place or entry.walks)
    if not entry.placement:
        parse_placement({"place": entry.place, "walks": entry.walks}, manifest.location("models", name, "place"))
        return to_placement_text(entry) if is_inline else ""
    if is_inline:
        site = manifest.location("models", name, "placement")
        what = f"[models.{name}] has a placement file and a placement of its own"
        raise PlacementError(str(manifest.path), [Problem(site, what, "keep one of them")])
    return _read_text(Path(manifest.resolve_path(entry.placement)))


def _read_text(path: Path) -> str:
    from mstar.plan.placement import read_placement

    read_placement(path)  # it says best what is wrong with a file
    return path.read_text()


# ---------------------------------------------------------------- explained
@dataclass(frozen=True, slots=True)
class ExplainRow:
    """One line of what is explained."""

    setting: str
    value: str
    source: str
    overridden: str
    purpose: str


def explain_rows(found: ServeConfig) -> list[ExplainRow]:
    """Every setting, then models and named keys."""
    told: list[ExplainRow] = []
    for choice in found.resolved.choices.values():
        one = choice.setting
        others = [f"{source}: {one.format(value)}" for source, value in choice.overridden if value != choice.value]
        told.append(ExplainRow(one.key, one.format(choice.value), choice.source, ", ".join(others), one.purpose))
    manifest = found.manifest
    for name, target in found.models.items():
        source = manifest.location("models", name, "model") if manifest else "command line"
        told.append(ExplainRow(f"models.{name}", target, source, "", "a model, under the name that clients give"))
        if found.placements.get(name):
            source = manifest.location("models", name, "place") if manifest else "--placement"
            told.append(ExplainRow(f"models.{name}.place", "a placement", source, "", "where its components run"))
    for holder in manifest.tenants if manifest else ():
        where = f"env {holder.env}" if holder.env else f"file {holder.file}" if holder.file else HIDDEN_TEXT
        told.append(
            ExplainRow(
                f"api_keys.tenant {holder.name}", where, str(found.manifest), "", "a key whose holder has a name"
            )
        )
    return told


def _explain(options: argparse.Namespace) -> None:
    found = explain_rows(resolve_config(options))
    if options.json:
        told = [{name: getattr(row, name) for name in ExplainRow.__slots__} for row in found]
        print(json.dumps(told, indent=2))
        return
    columns = ("setting", "value", "from", "overridden", "what it is for")
    lines = [columns, *((row.setting, row.value, row.source, row.overridden, row.purpose) for row in found)]
    print("\n".join(format_table(lines)))


def format_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
