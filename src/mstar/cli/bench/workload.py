"""What an operator wants to be asked: which kinds of requests, how many of each, of which model, and what is promised.

It is read from flags and from a TOML file, and is plain data. Who sends it is `drive`.
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
"""How often a robot asks, if nobody says."""
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
"""What a table of a file may have."""
_EXAMPLES = {
    "--mix": "--mix speech=2,chat=4,robot=1@5hz",
    "--slo": "--slo speech=first:1.0,continuity:0.1 images=10",
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of one kind."""

    number: float | None = None
    """Requests a second, or how many robots; None if only the kind was named."""
    hz: float = DEFAULT_ROBOT_HZ
    """How often each robot asks."""
    model: str = ""
    server_slo: str = ""
    """What our own server is told in the header `Mstar-SLO`."""
    slo: SloTarget = field(default_factory=SloTarget)
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the body."""


Workload: TypeAlias = dict[str, Traffic]
"""By the names of kinds."""


# ---------------------------------------------------------------- from flags
def parse_mix(text: str) -> Workload:
    """`speech=2,chat=4,robot=1@5hz`: requests a second of each kind, and how many robots."""
    workload: Workload = {}
    for word in text.split(","):
        kind, equals, number = word.partition("=")
        found = _NUMBER.fullmatch(number) if equals else None
        if equals and (found is None or not float(found[1]) or (found[2] and kind != ROBOT)):
            raise LoadError(f"--mix: {word!r} cannot be read\n  fix: write it as {_EXAMPLES['--mix']}")
        traffic = _new_traffic("--mix", kind)
        if found:
            traffic = replace(traffic, number=float(found[1]), hz=float(found[2] or DEFAULT_ROBOT_HZ))
        workload[kind] = traffic
    return workload


def workload_of_kinds(kinds: Iterable[str]) -> Workload:
    """Of each kind, as many as come: a trace says when."""
    return {kind: _new_traffic("the trace", kind) for kind in kinds}


def parse_slo(site: str, text: str) -> SloTarget:
    """`first:1.0,continuity:0.1`, or one number for the whole answer."""
    try:
        if ":" not in text:
            return SloTarget(total=float(text))
        return SloTarget(**{name: float(value) for name, value in (part.split(":") for part in text.split(","))})
    except (TypeError, ValueError):
        what = f"{site}: {text!r} is no promise; it has `first`, `total`, `continuity` and `itl`, in seconds"
        raise LoadError(f"{what}\n  fix: write it as {_EXAMPLES['--slo']}") from None


def apply_flags(workload: Workload, models: str, slos: Iterable[str], server_slos: str) -> Workload:
    """With what flags say of models, promises and paces; promises that nobody made are those of the kinds."""
    if models and "=" not in models:
        models = ",".join(f"{kind}={models}" for kind in workload if not workload[kind].model)
    for flag, words, change in (
        ("--model", models.split(","), lambda one, text: replace(one, model=text)),
        ("--server-slo", server_slos.split(","), lambda one, text: replace(one, server_slo=text)),
        ("--slo", slos, lambda one, text: replace(one, slo=parse_slo("--slo", text))),
    ):
        workload = workload | _apply_flag(workload, flag, words, change)
    for kind, traffic in workload.items():
        if not traffic.model:
            raise LoadError(f"nobody says which model is asked for {kind}\n  fix: --model {kind}=NAME")
    return {kind: _with_default_slo(kind, traffic) for kind, traffic in workload.items()}


def _apply_flag(
    workload: Workload, flag: str, words: Iterable[str], change: Callable[[Traffic, str], Traffic]
) -> Workload:
    changed: Workload = {}
    for word in filter(None, words):
        kind, equals, text = word.partition("=")
        if kind not in workload or not equals:
            what = f"{flag}: {word!r} says nothing of {format_names(workload)}, which are asked for"
            raise LoadError(f"{what}\n  fix: write {flag} {next(iter(workload))}=…")
        changed[kind] = change(workload[kind], text)
    return changed


def _with_default_slo(kind: str, traffic: Traffic) -> Traffic:
    if traffic.slo != SloTarget():
        return traffic
    return replace(traffic, slo=REQUEST_KINDS[kind].slo if kind in REQUEST_KINDS else SloTarget(total=1 / traffic.hz))


def _new_traffic(site: str, kind: str) -> Traffic:
    if kind not in KIND_NAMES:
        what = f"{site}: there is no kind `{kind}`{suggest_name(kind, KIND_NAMES)}"
        raise LoadError(f"{what}\n  fix: use one of {format_names(KIND_NAMES)}")
    return Traffic()


# ---------------------------------------------------------------- from a file
def read_workload(path: Path) -> Workload:
    """A table for each kind: `number`, `model`, `hz`, `server_slo`, `slo`, `body`."""
    try:
        told = tomllib.loads(path.read_text())
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}\n  fix: name a workload that is there") from error
    except ValueError as error:
        raise LoadError(f"{path}: {error}\n  fix: write it as TOML, with a table for each kind") from error
    if not told:
        raise LoadError(f"{path}: nothing is asked for\n  fix: write a table for a kind, such as [chat]")
    return {kind: _parse_table(f"{path}: [{kind}]", kind, table) for kind, table in told.items()}


def _parse_table(site: str, kind: str, table: Any) -> Traffic:
    traffic = _new_traffic(site, kind)
    for name, value in table.items() if isinstance(table, dict) else [("", table)]:
        if name not in _FIELD_TYPES:
            raise LoadError(
                f"{site}: there is no `{name}`{suggest_name(name, _FIELD_TYPES)}\n  fix: use {format_names(_FIELD_TYPES)}"
            )
        if not isinstance(value, _FIELD_TYPES[name]) or (name in ("number", "hz") and not value > 0):
            words = " or ".join(one.__name__ for one in _FIELD_TYPES[name])
            raise LoadError(f"{site}: {name} = {value!r}\n  fix: write a value of type {words}; numbers are above 0")
        read = parse_slo(site, str(value)) if name == "slo" else value
        traffic = replace(traffic, **{"params" if name == "body" else name: read})
    return traffic
