"""Workload of a load test: request kinds with rate, model and SLO, from flags or a TOML file.

It is plain data. `driver` sends the requests.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from mstar.cli.bench.records import SloTarget
from mstar.cli.bench.request_kinds import REQUEST_KINDS
from mstar.errors import LoadError, format_names, suggest_name

ROBOT = "robot"
DEFAULT_ROBOT_HZ = 5.0
"""Default control rate of a robot."""
KIND_NAMES = (*REQUEST_KINDS, ROBOT)
_NUMBER = re.compile(r"(\d+\.?\d*)(?:@(\d+\.?\d*)hz)?")
_FIELD_TYPES = {
    "number": (int, float),
    "hz": (int, float),
    "model": (str,),
    "server_slo": (str,),
    "slo": (str, int, float),
    "body": (dict,),
}
"""Fields of a kind's table in a workload file, with their types."""
_EXAMPLES = {
    "--mix": "--mix speech=2,chat=4,robot=1@5hz",
    "--slo": "--slo speech=ttft:1.0,continuity:0.1 images=10",
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of one kind."""

    number: float | None = None
    """Requests per second, or number of robots. None: not specified."""
    hz: float = DEFAULT_ROBOT_HZ
    """Observations per second of each robot."""
    model: str = ""
    server_slo: str = ""
    """Value of the header `Mstar-SLO`, which only mstar reads."""
    slo: SloTarget = field(default_factory=SloTarget)
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Extra fields of the request body."""


Workload: TypeAlias = dict[str, Traffic]
"""Traffic by kind."""


# ---------------------------------------------------------------- flags
def parse_mix(text: str) -> Workload:
    """Parse `speech=2,chat=4,robot=1@5hz`: requests per second by kind, and number of robots. Raises LoadError."""
    workload: Workload = {}
    for word in text.split(","):
        kind, equals, number = word.partition("=")
        match = _NUMBER.fullmatch(number) if equals else None
        if equals and (match is None or not float(match[1]) or (match[2] and kind != ROBOT)):
            raise LoadError(f"--mix: {word!r} is invalid\n  fix: use the form {_EXAMPLES['--mix']}")
        traffic = _new_traffic("--mix", kind)
        if match:
            traffic = replace(traffic, number=float(match[1]), hz=float(match[2] or DEFAULT_ROBOT_HZ))
        workload[kind] = traffic
    return workload


def workload_of_kinds(kinds: Iterable[str]) -> Workload:
    """Workload without rates, for a trace that has the arrival times."""
    return {kind: _new_traffic("--trace", kind) for kind in kinds}


def parse_slo(source: str, text: str) -> SloTarget:
    """Parse `ttft:1.0,continuity:0.1`, or one number for the whole response. Raises LoadError."""
    try:
        if ":" not in text:
            return SloTarget(total=float(text))
        return SloTarget(**{name: float(value) for name, value in (part.split(":") for part in text.split(","))})
    except (TypeError, ValueError):
        problem = f"{source}: {text!r} is not an SLO of `ttft`, `total`, `continuity` and `itl`, in seconds"
        raise LoadError(f"{problem}\n  fix: use the form {_EXAMPLES['--slo']}") from None


def apply_flags(workload: Workload, models: str, slos: Iterable[str], server_slos: str) -> Workload:
    """Apply --model, --slo and --server-slo, then the default SLO of each kind. Raises LoadError."""
    if models and "=" not in models:
        models = ",".join(f"{kind}={models}" for kind in workload if not workload[kind].model)
    for flag, words, change in (
        ("--model", models.split(","), lambda traffic, text: replace(traffic, model=text)),
        ("--server-slo", server_slos.split(","), lambda traffic, text: replace(traffic, server_slo=text)),
        ("--slo", slos, lambda traffic, text: replace(traffic, slo=parse_slo("--slo", text))),
    ):
        workload = workload | _apply_flag(workload, flag, words, change)
    for kind, traffic in workload.items():
        if not traffic.model:
            raise LoadError(f"no model for {kind}\n  fix: pass --model {kind}=NAME")
    return {kind: _with_default_slo(kind, traffic) for kind, traffic in workload.items()}


def _apply_flag(
    workload: Workload, flag: str, words: Iterable[str], change: Callable[[Traffic, str], Traffic]
) -> Workload:
    changed: Workload = {}
    for word in filter(None, words):
        kind, equals, text = word.partition("=")
        if kind not in workload or not equals:
            problem = f"{flag}: {word!r} matches no kind of the workload ({format_names(workload)})"
            raise LoadError(f"{problem}\n  fix: use the form {flag} {next(iter(workload))}=…")
        changed[kind] = change(workload[kind], text)
    return changed


def _with_default_slo(kind: str, traffic: Traffic) -> Traffic:
    if traffic.slo != SloTarget():
        return traffic
    return replace(traffic, slo=REQUEST_KINDS[kind].slo if kind in REQUEST_KINDS else SloTarget(total=1 / traffic.hz))


def _new_traffic(source: str, kind: str) -> Traffic:
    if kind not in KIND_NAMES:
        problem = f"{source}: unknown kind `{kind}`{suggest_name(kind, KIND_NAMES)}"
        raise LoadError(f"{problem}\n  fix: use one of {format_names(KIND_NAMES)}")
    return Traffic()


# ---------------------------------------------------------------- workload file
def read_workload(path: Path) -> Workload:
    """Read a TOML file with one table per kind; fields as in `_FIELD_TYPES`. Raises LoadError."""
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}\n  fix: pass the path of a workload file") from error
    except ValueError as error:
        raise LoadError(f"{path}: {error}\n  fix: write TOML with one table per kind") from error
    if not tables:
        raise LoadError(f"{path}: the workload is empty\n  fix: add a table for a kind, such as [chat]")
    return {kind: _parse_table(f"{path}: [{kind}]", kind, table) for kind, table in tables.items()}


def _parse_table(source: str, kind: str, table: Any) -> Traffic:
    traffic = _new_traffic(source, kind)
    for name, value in table.items() if isinstance(table, dict) else [("", table)]:
        if name not in _FIELD_TYPES:
            raise LoadError(
                f"{source}: unknown field `{name}`{suggest_name(name, _FIELD_TYPES)}\n"
                f"  fix: use {format_names(_FIELD_TYPES)}"
            )
        if not isinstance(value, _FIELD_TYPES[name]) or (name in ("number", "hz") and not value > 0):
            types = " or ".join(kind.__name__ for kind in _FIELD_TYPES[name])
            raise LoadError(f"{source}: {name} = {value!r} is invalid\n  fix: use {types}; numbers must be above 0")
        parsed = parse_slo(source, str(value)) if name == "slo" else value
        traffic = replace(traffic, **{"params" if name == "body" else name: parsed})
    return traffic
