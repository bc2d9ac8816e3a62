"""`mstar config explain`: show every server setting, its value, its source and its purpose. Starts nothing.

`resolve_config` merges flags, environment and manifest for `mstar serve` too, so both commands agree.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.cli.checkpoints.target import resolve_target, target_name
from mstar.cli.serving.settings import HIDDEN_TEXT, ResolvedSettings, add_flags, check_variables
from mstar.errors import LoadError, PlacementError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mstar.cli.serving.manifest import Manifest, ModelEntry
    from mstar.config import McpServerConfig, RuntimeConfig, TwinConfig

TARGET_HELP = (
    "A checkpoint (folder, .gguf file or Hub id ORG/NAME), an installed name (NAME@PATH sets the weights), "
    "a model's .py file (path.py or path.py:Class), or a manifest (.toml)."
)


def add_config(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Inspect the settings of a server."
    verbs = commands.add_parser("config", help=text, description=text).add_subparsers(
        title="commands", required=True, metavar="COMMAND"
    )
    text = "Show every setting with its value, source and purpose."
    explain = verbs.add_parser("explain", help=text, description=text)
    add_target(explain, is_needed=False)
    explain.add_argument("--json", action="store_true", help="Print JSON.")
    explain.set_defaults(run=_explain)


def add_target(parser: argparse.ArgumentParser, *, is_needed: bool) -> None:
    """Add the model argument and the flags of every setting."""
    parser.add_argument("target", metavar="MODEL", nargs=None if is_needed else "?", help=TARGET_HELP)
    parser.add_argument("--name", help="Public name of the model (default: the name of its file or folder).")
    parser.add_argument("--placement", type=Path, help="Placement file (default: one worker runs everything).")
    add_flags(parser)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Models to serve, with their placements and the resolved settings."""

    resolved: ResolvedSettings
    manifest: Manifest | None
    models: dict[str, str]
    """Argument of `load_model` by model name."""
    placements: dict[str, str]
    """Text of the placement file by model name. Empty: no placement."""
    twin: TwinConfig | None = None
    """Set if the models are served without weights."""

    @property
    def runtime(self) -> RuntimeConfig:
        """Runtime settings of the deployment."""
        import msgspec  # other commands run without it

        from mstar.config import RuntimeConfig

        return msgspec.structs.replace(self.resolved.build(RuntimeConfig), twin=self.twin)

    @property
    def mcp_servers(self) -> dict[str, McpServerConfig]:
        """MCP servers by label."""
        return self.manifest.mcp_servers if self.manifest else {}


def resolve_settings(options: argparse.Namespace) -> ServeConfig:
    """Merge flags, environment and manifest, without models and placements: looks at no checkpoint. Raises MstarError.

    Reads few small files, so a server that runs can call it in its event loop.
    """
    from mstar.cli.serving.manifest import Manifest  # needs msgspec, which other commands run without
    from mstar.config import ENV_PREFIX, env_variables

    target, variables = options.target, env_variables()
    manifest = Manifest(Path(target)) if target is not None and target.endswith(".toml") else None
    tenant_variables = [f"{tenant.env}" for tenant in manifest.tenants] if manifest else []
    check_variables(variables, frozenset(name for name in tenant_variables if name.startswith(ENV_PREFIX)))
    return ServeConfig(ResolvedSettings(vars(options), variables, manifest), manifest, {}, {})


def resolve_config(options: argparse.Namespace) -> ServeConfig:
    """Merge flags, environment and manifest, and resolve the models. Raises MstarError."""
    config, target = resolve_settings(options), options.target
    manifest = config.manifest
    if manifest is None:
        name = options.name or target_name(target or "")
        models = {name: resolve_target(target)} if target else {}
        placements = {name: _read_text(options.placement)} if options.placement else {}
        return replace(config, models=models, placements=placements)
    if options.name or options.placement:
        raise LoadError(
            f"--name and --placement apply to a single model, not to a manifest\n"
            f"  fix: set them in {target}, under [models.x]"
        )
    models = {name: _model_target(manifest, entry.model) for name, entry in manifest.models.items()}
    placements = {name: _placement_text(manifest, name, entry) for name, entry in manifest.models.items()}
    return replace(config, models=models, placements=placements)


def _model_target(manifest: Manifest, model: str) -> str:
    """Paths are relative to the manifest: of a model's .py file, and of a checkpoint that begins with a dot."""
    if model.startswith(".") or model.partition("@")[0].partition(":")[0].endswith(".py"):
        model = manifest.resolve_path(model)
    return resolve_target(model)


def _placement_text(manifest: Manifest, name: str, entry: ModelEntry) -> str:
    from mstar.cli.serving.manifest import to_placement_text
    from mstar.plan.placement import parse_placement

    is_inline = bool(entry.place or entry.walks)
    if not entry.placement:
        parse_placement({"place": entry.place, "walks": entry.walks}, manifest.location("models", name, "place"))
        return to_placement_text(entry) if is_inline else ""
    if is_inline:
        location = manifest.location("models", name, "placement")
        problem = f"[models.{name}] has both a placement file and an inline placement"
        raise PlacementError(str(manifest.path), [Problem(location, problem, "keep one of them")])
    return _read_text(Path(manifest.resolve_path(entry.placement)))


def _read_text(path: Path) -> str:
    from mstar.plan.placement import read_placement

    read_placement(path)  # raises an error with the location of the mistake
    return path.read_text()


# ---------------------------------------------------------------- mstar config explain
@dataclass(frozen=True, slots=True)
class ExplainRow:
    """One row of `mstar config explain`."""

    setting: str
    value: str
    source: str
    overridden: str
    purpose: str


def explain_rows(config: ServeConfig) -> list[ExplainRow]:
    """Every setting, then models, MCP servers and tenants."""
    rows: list[ExplainRow] = []
    for choice in config.resolved.choices.values():
        setting = choice.setting
        others = [f"{source}: {setting.format(value)}" for source, value in choice.overridden if value != choice.value]
        rows.append(
            ExplainRow(setting.key, setting.format(choice.value), choice.source, ", ".join(others), setting.purpose)
        )
    manifest = config.manifest
    for name, target in config.models.items():
        source = manifest.location("models", name, "model") if manifest else "command line"
        rows.append(ExplainRow(f"models.{name}", target, source, "", "Model served under this name"))
        if config.placements.get(name):
            source = manifest.location("models", name, "place") if manifest else "--placement"
            rows.append(
                ExplainRow(f"models.{name}.place", "a placement", source, "", "Workers of the model's components")
            )
    for label, server in config.mcp_servers.items():
        value, source = server.url or " ".join(server.command), f"mcp_servers.{label}"
        tools = f"MCP server; requests can use {', '.join(server.allowed_tools)}"
        rows.append(ExplainRow(source, value, str(manifest), "", tools))
    for tenant in manifest.tenants if manifest else ():
        value = f"env {tenant.env}" if tenant.env else f"file {tenant.file}" if tenant.file else HIDDEN_TEXT
        rows.append(
            ExplainRow(f"api_keys.tenant {tenant.name}", value, str(config.manifest), "", "API key of a named tenant")
        )
    return rows


def _explain(options: argparse.Namespace) -> None:
    rows = explain_rows(resolve_config(options))
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    columns = ("setting", "value", "source", "overridden", "purpose")
    lines = [columns, *(astuple(row) for row in rows)]
    print("\n".join(format_table(lines)))


def format_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
