"""A manifest: one file that says which models a server serves, where their components run, and who may come in.

    [server]
    port = 8000                       # any setting; `mstar config explain` lists all

    [api_keys]
    file = "keys.txt"

    [[api_keys.tenant]]                   # a key whose holder has a name and an allowance of its own
    name = "robot"
    env = "ROBOT_KEY"                 # or file = "robot.key", or sha256 = "..."
    max_concurrent = 4
    ttft_s = 0.2                     # and what is promised: ttft_s, tokens_per_s, best_effort, weight

    [models.chat]
    model = "smollm2"                 # an installed name, or path.py, or path.py:Class

    [models.chat.place]             # or placement = "file.toml"
    lm = "gpu0"

Paths are relative to the file. It is closed: a name that nobody knows is an error. It starts nothing, and reads no key.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from mstar.cli.serving.settings import settings, tables
from mstar.errors import LoadError, Problem, ProblemGroup, format_names, suggest_name

_TABLE_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]")
_KEY_LINE = re.compile(r"""\s*([\w."'-]+)\s*=""")


Positive = Annotated[float, msgspec.Meta(gt=0)]


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    model: str
    placement: str = ""
    """A placement file."""
    place: dict[str, Any] = {}
    walks: dict[str, Any] = {}
    """A placement as it would stand in such a file."""


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a key, where the key is found, and what is allowed and promised to who has it."""

    name: str
    sha256: str = ""
    env: str = ""
    file: str = ""
    requests_per_second: float | None = None
    max_concurrent: int | None = None
    ttft_s: Positive | None = None
    best_effort: bool | None = None
    weight: Positive | None = None
    tokens_per_s: Positive | None = None


class Manifest:
    """A file as it was read. Raises LoadError or Faults."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._text = path.read_text()
            self._tables: dict[str, Any] = tomllib.loads(self._text)
        except (OSError, ValueError) as error:  # not there, not TOML, or not text
            what = f"{path}: cannot be read: {error}"
            raise LoadError(f"{what}\n  fix: write a manifest, such as [models.x] with model = ...") from error
        self._problems: list[Problem] = []
        self._check()
        self.models = {
            name: self._convert(ModelEntry, one, ("models", name)) for name, one in self._read_table("models")
        }
        holders = self.table("api_keys").get("tenant", [])
        self.tenants = [self._convert(TenantConfig, one, ("api_keys", "tenant")) for one in holders]
        if not self.models:
            self._add_problem((), "it names no model", '[models.x]\nmodel = "smollm2"')
        if self._problems:
            raise ProblemGroup(str(path), self._problems)

    def __str__(self) -> str:
        return str(self.path)

    def table(self, table_name: str) -> Mapping[str, Any]:
        """What it says in a table."""
        found = self._tables.get(table_name, {})
        return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}

    def location(self, *path: str) -> str:
        """The file, and the line that says something, as far as it is on a line of its own."""
        lines = self._line_numbers
        number = next((lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in lines), 0)
        return f"{self.path}:{number}" if number else str(self.path)

    def resolve_path(self, name: str) -> str:
        """A path that it names, as seen from here."""
        return str(self.path.parent / name)

    # ---------------------------------------------------------------- what is wrong
    def _check(self) -> None:
        self._check_keys((), self._tables, (*tables(), "models"))
        for table, value in self._tables.items():
            if not isinstance(value, dict):
                self._add_problem((table,), f"{table} is {value!r}, not a table", f"[{table}]")
        for table in tables():
            names = [one.name for one in settings() if one.table == table]
            self._check_keys((table,), self.table(table), [*names, "tenant"] if table == "api_keys" else names)

    def _read_table(self, table: str) -> Iterable[tuple[str, Any]]:
        return self.table(table).items()

    def _convert(self, kind: type[Any], given: Any, path: tuple[str, ...]) -> Any:
        if isinstance(given, dict):
            self._check_keys(path, given, kind.__struct_fields__)
            given = {name: value for name, value in given.items() if name in kind.__struct_fields__}
        try:
            return msgspec.convert(given, kind)
        except msgspec.ValidationError as error:
            self._add_problem(path, f"[{'.'.join(path)}]: {error}", f"it has {format_names(kind.__struct_fields__)}")

    def _check_keys(self, path: tuple[str, ...], given: Iterable[str], known: Iterable[str]) -> None:
        for name in given:
            if name not in known:
                where = f"[{'.'.join(path)}]" if path else "the file"
                what = f"{where} has the unknown name `{name}`{suggest_name(name, known)}"
                self._add_problem((*path, name), what, f"use {format_names(known)}")

    def _add_problem(self, path: tuple[str, ...], what: str, fix: str) -> None:
        self._problems.append(Problem(self.location(*path), what, fix))

    @functools.cached_property
    def _line_numbers(self) -> dict[tuple[str, ...], int]:
        found: dict[tuple[str, ...], int] = {}
        table: tuple[str, ...] = ()
        for number, line in enumerate(self._text.splitlines(), 1):
            if header := _TABLE_HEADER.match(line):
                table = _split_key(header[1])
                found.setdefault(table, number)
            elif key := _KEY_LINE.match(line):
                found.setdefault((*table, *_split_key(key[1])), number)
        return found


def _split_key(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def to_placement_text(entry: ModelEntry) -> str:
    """The placement that stands in an entry, as the text of a placement file."""
    sections = {"place": entry.place} | {f'walks."{name}"': lines for name, lines in entry.walks.items()}
    blocks = [
        f"[{name}]\n" + "".join(f"{_to_toml(key)} = {_to_toml(value)}\n" for key, value in lines.items())
        for name, lines in sections.items()
        if lines
    ]
    return "\n".join(blocks)


def _to_toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return "{ " + ", ".join(f"{_to_toml(key)} = {_to_toml(one)}" for key, one in pairs) + " }"
    return msgspec.json.encode(value).decode()  # a string, a number, a flag or a list is written alike in both
