"""Renames symbols and moves files by a table; pyright's language server finds every typed use.

A table is a tab-separated file; a line is one of

    move    OLD_PATH    NEW_PATH
    rename  PATH        Name | Class.member | function(parameter) | Class.method(parameter)    NEW_NAME
    text    GLOB        OLD_TEXT    NEW_TEXT

All paths and names are those of the tree before the run. An identifier is renamed if pyright says that it is defined
where the table says, so prose, and other symbols of the same name, stay. An attribute that pyright cannot type (of a
test's fixture) is renamed if `src` no longer defines the old name and the table has one new name for it; the rest is
listed. Moves rewrite import paths in code, and dotted or slashed paths in text files.

Run as `python -m tools.rename TABLE...` in the repository root, with a clean tree; then `scripts/format` and the tests.
"""

import argparse
import ast
import fnmatch
import io
import json
import re
import subprocess
import sys
import time
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import unquote, urlparse

from tools.move_files import ROOT, TEXT_SUFFIXES, move_files, tracked

SERVERS = 2
PIPELINED = 200
READY_TIMEOUT_S = 120
TREES = ("src", "tests", "bench", "tools", "examples")
CONFIG = {"include": list(TREES), "pythonVersion": "3.11", "typeCheckingMode": "off"}
OWN = {"mstar", "tests", "bench", "tools", "examples"}
TYPE_OR_FSTRING = re.compile(r"""["'][\w\[\], .|]+["']$|[rR]?[fF]""")
"""String literals in which a name can be code: quoted types, and f-strings, which are one token before Python 3.12."""
Position = tuple[str, int, int]


@dataclass
class Table:
    moves: dict[str, str] = field(default_factory=dict)
    renames: list[tuple[str, str, str]] = field(default_factory=list)
    texts: list[tuple[str, str, str]] = field(default_factory=list)


def read_tables(paths: list[str]) -> Table:
    table = Table()
    for path in paths:
        for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            kind, *fields = line.split("\t")
            fields = [text.strip(" ") if kind != "text" else text for text in fields]
            if kind == "move" and len(fields) == 2:
                table.moves[fields[0]] = fields[1]
            elif kind == "rename" and len(fields) == 3:
                table.renames.append((fields[0], fields[1], fields[2]))
            elif kind == "text" and len(fields) == 3:
                table.texts.append((fields[0], fields[1], fields[2]))
            else:
                print(f"{path}:{number}: not understood: {line!r}")
    return table


class Pyright:
    """A pyright language server on this repository, asked where names are defined."""

    def __init__(self) -> None:
        server = Path(sys.executable).parent / "pyright-langserver"
        self._process = subprocess.Popen([server, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        folder = {"uri": ROOT.as_uri(), "name": "repository"}
        capabilities = {"workspace": {"configuration": True, "workspaceFolders": True}}
        self._request(
            0,
            "initialize",
            {"processId": None, "rootUri": ROOT.as_uri(), "workspaceFolders": [folder], "capabilities": capabilities},
        )
        self._receive(0)
        self._send({"method": "initialized", "params": {}})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _request(self, number: int, method: str, params: dict[str, Any]) -> None:
        self._send({"id": number, "method": method, "params": params})

    def _read(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        length = 0
        while line := stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return json.loads(stdout.read(length))

    def _receive(self, number: int) -> Any:
        while True:
            message = self._read()
            if "method" in message and "id" in message:
                result: Any = None
                if message["method"] == "workspace/configuration":
                    result = [{"pythonPath": sys.executable} for _ in message["params"]["items"]]
                self._send({"id": message["id"], "result": result})
            elif message.get("id") == number and "method" not in message:
                return message.get("result")

    def wait_until_ready(self, path: str, places: list[tuple[int, int]]) -> None:
        """Wait until it has listed the files: before that, it finds nothing."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline and not any(self.definitions(path, places)):
            time.sleep(1)

    def definitions(self, path: str, places: list[tuple[int, int]]) -> Iterator[list[Position]]:
        """Where the names at these places of a file are defined, for each.

        The file is not opened: that would discard everything that the server has inferred so far.
        """
        document = {"uri": (ROOT / path).as_uri()}
        for start in range(0, len(places), PIPELINED):
            chunk = places[start : start + PIPELINED]
            for number, (line, column) in enumerate(chunk, 1):
                position = {"line": line - 1, "character": column}
                self._request(number, "textDocument/definition", {"textDocument": document, "position": position})
            for number in range(1, len(chunk) + 1):
                yield [place for place in map(_position, self._receive(number) or []) if place is not None]

    def close(self) -> None:
        self._process.kill()


def _position(place: dict[str, Any]) -> Position | None:
    file = Path(unquote(urlparse(place["uri"]).path))
    if not file.is_relative_to(ROOT) or ".venv" in file.parts:
        return None
    start = place["range"]["start"]
    return file.relative_to(ROOT).as_posix(), start["line"] + 1, start["character"]


def _is_own_attribute(node: ast.AST, name: str) -> TypeGuard[ast.Attribute]:
    """Whether a node is an assignment to `self.name`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in {"self", "cls"}
    )


class Definitions:
    """Finds where a qualified name is defined in one file."""

    def __init__(self, path: str) -> None:
        self.lines = (ROOT / path).read_text("utf-8").splitlines()
        self.tree = ast.parse("\n".join(self.lines))

    def find(self, name: str) -> list[tuple[int, int]]:
        """Positions of the definitions of a name; several where it is assigned or overloaded several times."""
        parameter = None
        if name.endswith(")"):
            name, _, parameter = name[:-1].partition("(")
        scopes: list[ast.AST] = [self.tree]
        *parents, last = name.split(".")
        for parent in parents:
            scopes = [
                node for scope in scopes for node in self._members(scope) if getattr(node, "name", None) == parent
            ]
        if parameter is not None:
            functions = [
                node for scope in scopes for node in self._members(scope) if getattr(node, "name", None) == last
            ]
            return [place for node in functions for place in self._parameter(node, parameter)]
        return list(dict.fromkeys(place for scope in scopes for place in self._defined(scope, last)))

    def _members(self, scope: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(scope):
            yield child
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from self._members(child)

    def _parameter(self, node: ast.AST, name: str) -> Iterator[tuple[int, int]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            yield from ((a.lineno, a.col_offset) for a in every if a is not None and a.arg == name)

    def _defined(self, scope: ast.AST, name: str) -> Iterator[tuple[int, int]]:
        for node in self._members(scope):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
                line = self.lines[node.lineno - 1]
                yield node.lineno, line.index(name, node.col_offset + (5 if isinstance(node, ast.ClassDef) else 3))
            elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                yield node.lineno, node.col_offset
        if isinstance(scope, ast.ClassDef):
            for node in ast.walk(scope):
                if _is_own_attribute(node, name):
                    yield node.end_lineno or 0, (node.end_col_offset or 0) - len(name)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._parameter(scope, name)


def collect(table: Table) -> tuple[dict[Position, tuple[str, str]], list[str]]:
    """All edits that the renames ask for: position -> (old, new); and what could not be found."""
    targets: dict[Position, tuple[str, str]] = {}
    problems: list[str] = []
    files: dict[str, Definitions] = {}
    for path, name, new in table.renames:
        old = old_name(name)
        if not (ROOT / path).is_file():
            problems.append(f"{path}: no such file (for {name})")
            continue
        if path not in files:
            files[path] = Definitions(path)
        places = files[path].find(name)
        if not places or not new.isidentifier():
            problems.append(f"{path}: no definition of {name}, or {new!r} is not an identifier")
        for place in places:
            if targets.setdefault((path, *place), (old, new)) != (old, new):
                problems.append(f"{path}:{place[0]}: two new names for {name}")  # noqa: PERF401 - it also sets
    names = {old for old, _ in targets.values()}
    uses = {path: list(_uses(path, names)) for path in tracked(*(f"{tree}/*.py" for tree in TREES))}
    paths = sorted((path for path in uses if uses[path]), key=lambda path: -len(uses[path]))
    print(f"{len(targets)} definitions, {sum(map(len, uses.values()))} uses in {len(paths)} files", flush=True)
    edits = dict(targets)
    with ThreadPoolExecutor(SERVERS) as pool:
        shares = [[(path, uses[path]) for path in sorted(paths[start::SERVERS])] for start in range(SERVERS)]
        for results in pool.map(lambda share: _resolve(share, targets), shares):
            edits |= results
    return edits, problems


def _uses(path: str, names: set[str]) -> Iterator[tuple[int, int]]:
    """Where one of the names stands in a file: as an identifier, in a quoted type or in an f-string."""
    text = (ROOT / path).read_text("utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line, column = token.start
        if token.type == tokenize.NAME and token.string in names:
            yield line, column
        elif token.type == tokenize.STRING and TYPE_OR_FSTRING.match(token.string):
            for word in re.finditer(r"\w+", token.string):
                if word.group() in names:
                    rows = token.string[: word.start()].split("\n")  # an f-string may span lines
                    yield line + len(rows) - 1, len(rows[-1]) + (column if len(rows) == 1 else 0)


def _resolve(
    share: list[tuple[str, list[tuple[int, int]]]], targets: dict[Position, tuple[str, str]]
) -> dict[Position, tuple[str, str]]:
    edits: dict[Position, tuple[str, str]] = {}
    server = Pyright()
    server.wait_until_ready(*share[0])
    for number, (path, places) in enumerate(share, 1):
        if number % 20 == 0:
            print(f"{number} of {len(share)} files, {len(edits)} edits", flush=True)
        for (line, column), origins in zip(places, server.definitions(path, places), strict=True):
            for origin in origins:
                if origin in targets:
                    edits[path, line, column] = targets[origin]
                    break
    server.close()
    return edits


def old_name(name: str) -> str:
    """The identifier that `Class.member` or `function(parameter)` ends with."""
    return name[:-1].partition("(")[2] if name.endswith(")") else name.split(".")[-1]


def apply_edits(edits: dict[Position, tuple[str, str]]) -> list[str]:
    problems: list[str] = []
    by_file: dict[str, list[tuple[int, int, str, str]]] = defaultdict(list)
    for (path, line, column), (old, new) in edits.items():
        by_file[path].append((line, column, old, new))
    for path, changes in by_file.items():
        lines = (ROOT / path).read_text("utf-8").split("\n")
        for line, column, old, new in sorted(changes, reverse=True):
            text = lines[line - 1]
            if not text[column:].startswith(old):
                if text[column:].startswith(("import ", "from ", "*")) or old not in text:
                    continue
                problems.append(f"{path}:{line}:{column}: {text[column : column + 30]!r} is not {old!r}")
                continue
            lines[line - 1] = text[:column] + new + text[column + len(old) :]
        (ROOT / path).write_text("\n".join(lines), "utf-8")
    return problems


def matches(path: str, glob: str) -> bool:
    pattern = re.escape(glob).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    pattern = re.sub(r"\\\{([^}]*)\\\}", lambda m: "(?:" + m.group(1).replace(",", "|") + ")", pattern)
    return re.fullmatch(pattern, path) is not None or (fnmatch.fnmatch(path, glob) and "**" in glob)


def replace_texts(table: Table) -> list[str]:
    problems: list[str] = []
    files = tracked()
    cache: dict[str, str] = {}
    for glob, old, new in table.texts:
        hits = 0
        chosen = [
            path
            for path in files
            if Path(path).suffix in TEXT_SUFFIXES and any(matches(path, g) for g in glob.split(" "))
        ]
        for path in chosen:
            if path not in cache:
                try:
                    cache[path] = (ROOT / path).read_text("utf-8")
                except UnicodeDecodeError:
                    cache[path] = ""
            if old in cache[path]:
                hits += 1
                cache[path] = cache[path].replace(old, new)
                (ROOT / path).write_text(cache[path], "utf-8")
        if not hits:
            problems.append(f"text {glob}: {old!r} not found")
    return problems


def leftovers(table: Table) -> list[str]:
    """Rename untyped uses of names that src no longer defines; report the others."""
    targets: dict[str, set[str]] = defaultdict(set)
    for _, name, new in table.renames:
        targets[old_name(name)].add(new)
    defined = {name for path in tracked("src/*.py", "examples/*.py") for name in _bound(_parse(path))}
    report: list[str] = []
    for path in tracked(*(f"{tree}/*.py" for tree in TREES)):
        tree = _parse(path)
        bound = _bound(tree)
        foreign = _foreign_names(tree)
        text = (ROOT / path).read_text("utf-8")
        lines = text.split("\n")
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        for index in range(len(tokens) - 1, 1, -1):
            token = tokens[index]
            line, column = token.start
            statement = lines[line - 1].lstrip()
            if token.type != tokenize.NAME or token.string not in targets or statement.startswith(("import ", "from ")):
                continue
            is_attribute = tokens[index - 1].string == "."
            is_foreign = is_attribute and tokens[index - 2].string in foreign
            event = targets[token.string]
            is_free = token.string not in defined and token.string not in bound
            if is_attribute and not is_foreign and is_free and len(event) == 1:
                (new,) = event
                lines[line - 1] = lines[line - 1][:column] + new + lines[line - 1][column + len(token.string) :]
                report.append(f"changed {path}:{line}: {token.string} -> {new}")
            elif is_attribute and not is_foreign:
                report.append(f"left {path}:{line}: {token.string} ({', '.join(sorted(event))}): {statement[:100]}")
        (ROOT / path).write_text("\n".join(lines), "utf-8")
    return report


def _parse(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


def _bound(tree: ast.Module) -> set[str]:
    """Every name that a file defines, binds or sets as an attribute."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def _foreign_names(tree: ast.Module) -> set[str]:
    """Names that a file imports from elsewhere than this repository: their attributes are not ours."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            own = [alias for alias in node.names if alias.name.split(".")[0] not in OWN]
            names |= {(alias.asname or alias.name).split(".")[0] for alias in own}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] not in OWN:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--check", action="store_true", help="only look for definitions that do not exist")
    options = parser.parse_args()
    table = read_tables(options.tables)
    config = ROOT / "pyrightconfig.json"
    if options.check:
        for path, name, _ in table.renames:
            if not (ROOT / path).is_file() or not Definitions(path).find(name):
                print(f"{path}: no definition of {name}")
        return 0
    config.write_text(json.dumps(CONFIG), "utf-8")
    try:
        edits, problems = collect(table)
    finally:
        config.unlink()
    print(f"{len(edits)} edits by pyright")
    problems += apply_edits(edits)
    report = leftovers(table)
    problems += replace_texts(table)
    problems += move_files(table.moves)
    for line in [*report, *problems]:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
