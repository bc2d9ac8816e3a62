"""Settings: everything that an operator may choose for a server, each defined once, in `mstar.config`.

A flag, an environment variable or a line of a manifest may say it; the first of these wins, and the default comes last.
Models and named keys are not settings: they are read by `manifest`.
"""

from __future__ import annotations

import argparse
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from mstar.errors import Problem, ProblemGroup, suggest_name

if TYPE_CHECKING:
    from mstar.cli.serving.manifest import Manifest

Section = TypeVar("Section")

NONE_TEXT = "none"
"""What stands for no value, where a setting may have none."""
HIDDEN_TEXT = "(hidden)"
_FLAG_PREFIXES = {"api_keys": "api-key-", "slo": "slo-"}
"""What the flags of a table begin with, where their names alone would say too little."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that may be chosen."""

    table: str
    name: str
    type: Any
    default: Any
    purpose: str
    flag: str
    is_secret: bool
    is_path: bool

    @property
    def key(self) -> str:
        """How a manifest says it."""
        return f"{self.table}.{self.name}"

    @property
    def variable(self) -> str:
        """Its environment variable, without the prefix."""
        return self.flag.replace("-", "_").upper()

    @property
    def is_list(self) -> bool:
        """Whether it has any number of values."""
        return typing.get_origin(typing.get_args(self.type)[0]) is tuple

    def parse(self, raw: Any, *, is_text: bool) -> Any:
        """What was said, as a value. Raises ValueError, which names no secret."""
        import msgspec

        if is_text and self.is_list and isinstance(raw, str):
            raw = raw.split()
        try:
            return msgspec.convert(None if raw == NONE_TEXT else raw, self.type, strict=not is_text)
        except msgspec.ValidationError as error:
            shown = "what was given" if self.is_secret else f"{raw!r}"
            raise ValueError(f"{shown} will not do: {error}") from None

    def format(self, value: Any) -> str:
        """A value as it may be printed."""
        if self.is_secret and value:
            return HIDDEN_TEXT
        if isinstance(value, bool):
            return str(value).lower()
        return NONE_TEXT if value is None else " ".join(value) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """What a setting came to be, who said so, and what others said who were not heeded."""

    setting: Setting
    value: Any
    source: str
    overridden: tuple[tuple[str, Any], ...] = ()


@functools.cache
def tables() -> dict[str, tuple[type[Any], ...]]:
    """The tables of settings, each with what defines them."""
    from mstar import config  # its library is for those who serve, and other commands are run without it

    return {
        "server": (config.ServerConfig,),
        "slo": (config.SloConfig,),
        "limits": (config.HttpLimits, config.RuntimeConfig),
        "api_keys": (config.ApiKeyConfig, config.RateLimit),
    }


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Every setting."""
    return tuple(one for table, owners in tables().items() for owner in owners for one in _fields(table, owner))


def _fields(table: str, owner: type[Any]) -> list[Setting]:
    import msgspec

    found: list[Setting] = []
    for field in msgspec.structs.fields(owner):
        meta = next((one for one in typing.get_args(field.type) if isinstance(one, msgspec.Meta)), None)
        if meta is None:
            continue  # it is for tests alone
        more, prefix = meta.extra or {}, _FLAG_PREFIXES.get(table, "")
        flag = more.get("flag", prefix + field.name.replace("_", "-"))
        marks = more.get("is_secret", False), more.get("is_path", False)
        found.append(Setting(table, field.name, field.type, field.default, meta.description or "", flag, *marks))
    return found


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting."""
    if find_spec("msgspec") is None:
        parser.add_argument("more", nargs=argparse.REMAINDER)  # that something is missing is told when it runs
        return
    for one in settings():
        plain = typing.get_args(one.type)[0]
        how: dict[str, Any] = {"metavar": one.name.upper()}
        if plain is bool:
            how = {"action": argparse.BooleanOptionalAction}
        elif one.is_list:
            how["action"] = "append"
        purpose = f"{one.purpose}; may be given again" if one.is_list else f"{one.purpose} ({one.format(one.default)})"
        parser.add_argument(f"--{one.flag}", dest=one.key, default=None, help=purpose, **how)


class ResolvedSettings:
    """Every setting as it was chosen."""

    def __init__(
        self, flags: Mapping[str, Any], variables: Mapping[str, str], manifest: Manifest | None = None
    ) -> None:
        self.choices: dict[str, ResolvedSetting] = {}
        problems: list[Problem] = []
        for one in settings():
            said: list[tuple[str, Any]] = []
            for source, given, is_text in _candidates(one, flags, variables, manifest):
                try:
                    said.append((source, one.parse(given, is_text=is_text)))
                except ValueError as error:
                    problems.append(Problem(source, f"{one.key}: {error}", f"it is {one.purpose}"))
            (source, value), *others = *said, ("default", one.default)
            self.choices[one.key] = ResolvedSetting(one, value, source, tuple(others))
        if problems:
            raise ProblemGroup("settings", problems)

    def build(self, owner: type[Section]) -> Section:
        """One of the structures that define settings, as chosen."""
        table = next(table for table, owners in tables().items() if owner in owners)
        return owner(**{one.name: self.choices[one.key].value for one in _fields(table, owner)})


def _candidates(
    one: Setting, flags: Mapping[str, Any], variables: Mapping[str, str], manifest: Manifest | None
) -> list[tuple[str, Any, bool]]:
    """What was said of a setting: where, what, and whether as text; who is heeded most comes first."""
    from mstar.config import ENV_PREFIX  # its library is for serving; other commands run without it

    found: list[tuple[str, Any, bool]] = []
    if flags.get(one.key) is not None:
        found.append((f"--{one.flag}", flags[one.key], True))
    if one.variable in variables:
        found.append((f"{ENV_PREFIX}{one.variable}", variables[one.variable], True))
    if manifest is not None and one.name in manifest.table(one.table):
        value = manifest.table(one.table)[one.name]
        is_beside = one.is_path and isinstance(value, str)
        found.append(
            (manifest.location(one.table, one.name), manifest.resolve_path(value) if is_beside else value, False)
        )
    return found


def check_variables(variables: Mapping[str, str], others: frozenset[str] = frozenset()) -> None:
    """Raise Faults if a variable of ours is none: a misspelt one would go unnoticed."""
    from mstar.config import ENV_PREFIX  # its library is for serving; other commands run without it

    known = [f"{ENV_PREFIX}{one.variable}" for one in settings()]
    unknown = [name for name in (f"{ENV_PREFIX}{name}" for name in variables) if name not in (*known, *others)]
    if unknown:
        fix = "unset it; `mstar config explain` lists all"
        problems = [
            Problem("environment", f"nothing is called {name}{suggest_name(name, known)}", fix) for name in unknown
        ]
        raise ProblemGroup("settings", problems)
