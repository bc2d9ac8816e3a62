"""Manifest of a server: a TOML file with its models, their placements, its settings and its API keys.

    [server]
    port = 8000                       # any setting; `mstar config explain` lists all

    [api_keys]
    file = "keys.txt"

    [[api_keys.tenant]]               # a named API key with its own rate limit
    name = "robot"
    env = "ROBOT_KEY"                 # or file = "robot.key", or sha256 = "..."
    role = "operator"                 # can load and unload models and see all requests; default "client"
    max_concurrent = 4
    ttft_s = 0.2                      # and its SLO: ttft_s, tokens_per_s, best_effort, weight

    [models.chat]
    model = "smollm2"                 # an installed name, or path.py, or path.py:Class

    [models.chat.place]               # or placement = "file.toml"
    lm = "gpu0"

    [mcp_servers.files]               # an MCP server whose tools requests can name
    command = ["python", "files.py"]  # or url = "https://example.org/mcp"
    allowed_tools = ["read_file"]
    call_timeout_s = 10

Paths are relative to the file. Unknown keys are errors. This module starts nothing and reads no API key.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec

from mstar.cli.serving.settings import settings, tables
from mstar.config import McpServerConfig
from mstar.errors import LoadError, Problem, ProblemGroup, format_names, suggest_name

_TABLE_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]")
_KEY_LINE = re.compile(r"""\s*([\w."'-]+)\s*=""")


Positive = Annotated[float, msgspec.Meta(gt=0)]


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A `[models.NAME]` table."""

    model: str
    placement: str = ""
    """Path of a placement file."""
    place: dict[str, Any] = {}
    walks: dict[str, Any] = {}
    """Inline placement, with the same tables as a placement file."""


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An `[[api_keys.tenant]]` table: name, source of the key, rate limit and SLO."""

    name: str
    sha256: str = ""
    env: str = ""
    file: str = ""
    role: Literal["client", "operator"] = "client"
    requests_per_second: float | None = None
    max_concurrent: int | None = None
    ttft_s: Positive | None = None
    best_effort: bool | None = None
    weight: Positive | None = None
    tokens_per_s: Positive | None = None


class Manifest:
    """A parsed and validated manifest. Raises LoadError or ProblemGroup."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._text = path.read_text()
            self._tables: dict[str, Any] = tomllib.loads(self._text)
        except (OSError, ValueError) as error:  # missing, not text, or not TOML
            problem = f"{path}: cannot be read: {error}"
            raise LoadError(f"{problem}\n  fix: write a manifest, such as [models.x] with model = ...") from error
        self._problems: list[Problem] = []
        self._check()
        self.models = {
            name: self._convert(ModelEntry, table, ("models", name)) for name, table in self.table("models").items()
        }
        servers = self.table("mcp_servers").items()
        self.mcp_servers = {label: self._mcp_server(label, table) for label, table in servers}
        tenants = self.table("api_keys").get("tenant", [])
        self.tenants = [self._convert(TenantConfig, table, ("api_keys", "tenant")) for table in tenants]
        if not self.models:
            self._add_problem((), "the manifest has no model", '[models.x]\nmodel = "smollm2"')
        if self._problems:
            raise ProblemGroup(str(path), self._problems)

    def __str__(self) -> str:
        return str(self.path)

    def table(self, table_name: str) -> Mapping[str, Any]:
        """A top-level table; empty if it is missing."""
        table = self._tables.get(table_name, {})
        return cast("Mapping[str, Any]", table) if isinstance(table, dict) else {}

    def location(self, *path: str) -> str:
        """`file:line` of a key, or of the closest table around it."""
        lines = self._line_numbers
        number = next((lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in lines), 0)
        return f"{self.path}:{number}" if number else str(self.path)

    def resolve_path(self, name: str) -> str:
        """A path in the manifest, resolved against its folder."""
        return str(self.path.parent / name)

    # ---------------------------------------------------------------- validation
    def _check(self) -> None:
        self._check_keys((), self._tables, (*tables(), "models", "mcp_servers"))
        for table, value in self._tables.items():
            if not isinstance(value, dict):
                self._add_problem((table,), f"{table} is {value!r}, not a table", f"[{table}]")
        for table in tables():
            names = [setting.name for setting in settings() if setting.table == table]
            self._check_keys((table,), self.table(table), [*names, "tenant"] if table == "api_keys" else names)

    def _mcp_server(self, label: str, table: Any) -> McpServerConfig:
        path = ("mcp_servers", label)
        server: McpServerConfig | None = self._convert(McpServerConfig, table, path)
        if server is None:
            return McpServerConfig(allowed_tools=())  # never used: the problem is reported
        if bool(server.command) == bool(server.url):
            fix = 'set one of them, such as command = ["python", "server.py"]'
            self._add_problem(path, f"[mcp_servers.{label}] needs either a command or a url", fix)
        elif server.url and not server.url.startswith(("http://", "https://")):
            fix = "set the URL of the server, such as https://example.org/mcp"
            self._add_problem((*path, "url"), f"[mcp_servers.{label}]: {server.url!r} is not an HTTP URL", fix)
        return msgspec.structs.replace(server, directory=self.resolve_path(server.directory))

    def _convert(self, kind: type[Any], table: Any, path: tuple[str, ...]) -> Any:
        if isinstance(table, dict):
            self._check_keys(path, table, kind.__struct_fields__)
            table = {name: value for name, value in table.items() if name in kind.__struct_fields__}
        try:
            return msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            self._add_problem(path, f"[{'.'.join(path)}]: {error}", f"use {format_names(kind.__struct_fields__)}")

    def _check_keys(self, path: tuple[str, ...], names: Iterable[str], known: Iterable[str]) -> None:
        for name in names:
            if name not in known:
                where = f"[{'.'.join(path)}]" if path else "the manifest"
                problem = f"{where} has the unknown key `{name}`{suggest_name(name, known)}"
                self._add_problem((*path, name), problem, f"use {format_names(known)}")

    def _add_problem(self, path: tuple[str, ...], problem: str, fix: str) -> None:
        self._problems.append(Problem(self.location(*path), problem, fix))

    @functools.cached_property
    def _line_numbers(self) -> dict[tuple[str, ...], int]:
        numbers: dict[tuple[str, ...], int] = {}
        table: tuple[str, ...] = ()
        for number, line in enumerate(self._text.splitlines(), 1):
            if header := _TABLE_HEADER.match(line):
                table = _split_key(header[1])
                numbers.setdefault(table, number)
            elif key := _KEY_LINE.match(line):
                numbers.setdefault((*table, *_split_key(key[1])), number)
        return numbers


def _split_key(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def to_placement_text(entry: ModelEntry) -> str:
    """Inline placement of a model as the text of a placement file."""
    sections = {"place": entry.place} | {f'walks."{name}"': lines for name, lines in entry.walks.items()}
    blocks = [
        f"[{name}]\n" + "".join(f"{to_toml(key)} = {to_toml(value)}\n" for key, value in lines.items())
        for name, lines in sections.items()
        if lines
    ]
    return "\n".join(blocks)


def to_toml(value: Any) -> str:
    """A value on one line of TOML."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return "{ " + ", ".join(f"{to_toml(key)} = {to_toml(item)}" for key, item in pairs) + " }"
    return msgspec.json.encode(value).decode()  # strings, numbers, booleans and lists look the same in JSON and TOML
