"""Server settings from flags, environment variables and the manifest. Each setting is defined once, in `mstar.config`.

Precedence: flag, environment variable, manifest, default. Models and tenants are not settings; `manifest` reads them.
"""

from __future__ import annotations

import argparse
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

from mstar.errors import Problem, ProblemGroup, suggest_name

Section = TypeVar("Section")


class SettingsFile(Protocol):
    """A manifest, as far as it has settings."""

    def table(self, table_name: str, /) -> Mapping[str, Any]:
        """The settings of a table."""
        ...

    def location(self, *path: str) -> str:
        """Where a setting stands, for messages."""
        ...

    def resolve_path(self, value: Any, /) -> Any:
        """A path relative to the file, as an absolute one."""
        ...


NONE_TEXT = "none"
"""Text that unsets an optional setting."""
HIDDEN_TEXT = "(hidden)"
_FLAG_PREFIXES = {"api_keys": "api-key-", "slo": "slo-"}
"""Prefix of the flags of a table whose field names alone are ambiguous."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Definition of one setting."""

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
        """Dotted key in a manifest."""
        return f"{self.table}.{self.name}"

    @property
    def variable(self) -> str:
        """Name of its environment variable, without the prefix."""
        return self.flag.replace("-", "_").upper()

    @property
    def is_list(self) -> bool:
        """Whether it is a list: its flag can be repeated."""
        return typing.get_origin(typing.get_args(self.type)[0]) is tuple

    def parse(self, raw: Any, *, is_text: bool) -> Any:
        """Convert a raw value. Raises ValueError, whose message never contains a secret."""
        import msgspec

        if is_text and self.is_list and isinstance(raw, str):
            raw = raw.split()
        try:
            return msgspec.convert(None if raw == NONE_TEXT else raw, self.type, strict=not is_text)
        except msgspec.ValidationError as error:
            shown = "the value" if self.is_secret else f"{raw!r}"
            raise ValueError(f"{shown} is invalid: {error}") from None

    def format(self, value: Any) -> str:
        """Format a value for printing. Secrets are hidden."""
        if self.is_secret and value:
            return HIDDEN_TEXT
        if isinstance(value, bool):
            return str(value).lower()
        return NONE_TEXT if value is None else " ".join(value) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """Value of a setting, its source, and the values of sources with lower precedence."""

    setting: Setting
    value: Any
    source: str
    overridden: tuple[tuple[str, Any], ...] = ()


@functools.cache
def tables() -> dict[str, tuple[type[Any], ...]]:
    """Manifest tables with the classes that define their settings."""
    from mstar import config  # needs msgspec, which other commands run without

    return {
        "server": (config.ServerConfig,),
        "slo": (config.SloConfig,),
        "limits": (config.HttpLimits, config.RuntimeConfig),
        "api_keys": (config.ApiKeyConfig, config.RateLimit),
    }


@functools.cache
def settings() -> tuple[Setting, ...]:
    """All settings, in the order of their tables."""
    return tuple(setting for table, owners in tables().items() for owner in owners for setting in _fields(table, owner))


def _fields(table: str, owner: type[Any]) -> list[Setting]:
    import msgspec

    definitions: list[Setting] = []
    for field in msgspec.structs.fields(owner):
        meta = next((item for item in typing.get_args(field.type) if isinstance(item, msgspec.Meta)), None)
        if meta is None:
            continue  # not a setting: only tests set it
        extra, prefix = meta.extra or {}, _FLAG_PREFIXES.get(table, "")
        flag = extra.get("flag", prefix + field.name.replace("_", "-"))
        marks = extra.get("is_secret", False), extra.get("is_path", False)
        definitions.append(Setting(table, field.name, field.type, field.default, meta.description or "", flag, *marks))
    return definitions


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting."""
    if find_spec("msgspec") is None:
        parser.add_argument("more", nargs=argparse.REMAINDER)  # running the command reports the missing package
        return
    for setting in settings():
        options: dict[str, Any] = {"metavar": setting.name.upper()}
        if typing.get_args(setting.type)[0] in (bool, bool | None):
            options = {"action": argparse.BooleanOptionalAction}
        elif setting.is_list:
            options["action"] = "append"
        note = "repeatable" if setting.is_list else f"default {setting.format(setting.default) or 'empty'}"
        text = f"{setting.purpose.removesuffix('.')} ({note})."
        parser.add_argument(f"--{setting.flag}", dest=setting.key, default=None, help=text, **options)


class ResolvedSettings:
    """The resolved value of every setting. Raises ProblemGroup with all invalid values."""

    def __init__(
        self, flags: Mapping[str, Any], variables: Mapping[str, str], manifest: SettingsFile | None = None
    ) -> None:
        self.choices: dict[str, ResolvedSetting] = {}
        problems: list[Problem] = []
        for setting in settings():
            values: list[tuple[str, Any]] = []
            for source, raw, is_text in _candidates(setting, flags, variables, manifest):
                try:
                    values.append((source, setting.parse(raw, is_text=is_text)))
                except ValueError as error:
                    problems.append(
                        Problem(source, f"{setting.key}: {error}", f"set a valid value. Meaning: {setting.purpose}")
                    )
            (source, value), *others = *values, ("default", setting.default)
            self.choices[setting.key] = ResolvedSetting(setting, value, source, tuple(others))
        if problems:
            raise ProblemGroup("settings", problems)

    def build(self, owner: type[Section]) -> Section:
        """Build a configuration class from the resolved values."""
        table = next(table for table, owners in tables().items() if owner in owners)
        return owner(**{setting.name: self.choices[setting.key].value for setting in _fields(table, owner)})


def _candidates(
    setting: Setting, flags: Mapping[str, Any], variables: Mapping[str, str], manifest: SettingsFile | None
) -> list[tuple[str, Any, bool]]:
    """Sources that set a setting, highest precedence first: (source, raw value, whether it is text)."""
    from mstar.config import ENV_PREFIX

    candidates: list[tuple[str, Any, bool]] = []
    if flags.get(setting.key) is not None:
        candidates.append((f"--{setting.flag}", flags[setting.key], True))
    if setting.variable in variables:
        candidates.append((f"{ENV_PREFIX}{setting.variable}", variables[setting.variable], True))
    if manifest is not None and setting.name in manifest.table(setting.table):
        value = manifest.table(setting.table)[setting.name]
        if setting.is_path and isinstance(value, str):
            value = manifest.resolve_path(value)
        candidates.append((manifest.location(setting.table, setting.name), value, False))
    return candidates


def check_variables(variables: Mapping[str, str], others: frozenset[str] = frozenset()) -> None:
    """Raise ProblemGroup if a variable with our prefix is no setting, so that a typo does not go unnoticed."""
    from mstar.config import ENV_PREFIX

    known = [f"{ENV_PREFIX}{setting.variable}" for setting in settings()]
    unknown = [name for name in (f"{ENV_PREFIX}{name}" for name in variables) if name not in (*known, *others)]
    if unknown:
        fix = "unset it; `mstar config explain` lists all settings"
        problems = [
            Problem("environment", f"unknown variable {name}{suggest_name(name, known)}", fix) for name in unknown
        ]
        raise ProblemGroup("settings", problems)
