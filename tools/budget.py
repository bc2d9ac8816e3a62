"""Size limits of the code: 500 lines per file, 60 lines per function, 20 methods per class.

A limit is raised only in pyproject's `[tool.mstar.budget]` table, one entry per file, function or class, and
only with a decision note that gives the reason. An entry that is no longer needed is a problem too, so the table
stays as short as the list of real exceptions. Run as `python -m tools.budget` in the repository root.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.sources import Problem, Source, read_sources, run

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_METHODS = 20

CONFIG = "pyproject.toml"
TABLE = "[tool.mstar.budget]"
DECISION = re.compile(r"docs/decisions/\d{4}-[a-z0-9-]+\.md")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Measure:
    """One measured thing: `key` is how the table names it, `unit` is what was counted."""

    key: str
    line: int
    unit: str
    size: int
    limit: int
    fix: str


def measure(source: Source) -> Iterator[Measure]:
    """Sizes of a file and of all functions and classes in it, nested ones included."""
    lines = len(source.text.splitlines())
    yield Measure(source.path, 1, "lines", lines, MAX_FILE_LINES, "split the file by responsibility")
    yield from _measure_inside(source.tree, f"{source.path}::")


def _measure_inside(node: ast.AST, prefix: str) -> Iterator[Measure]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            lines = (child.end_lineno or child.lineno) - child.lineno + 1
            key = prefix + child.name
            yield Measure(key, child.lineno, "lines", lines, MAX_FUNCTION_LINES, "extract a function")
            yield from _measure_inside(child, f"{key}.")
        elif isinstance(child, ast.ClassDef):
            methods = sum(isinstance(item, FUNCTIONS) for item in child.body)
            key = prefix + child.name
            yield Measure(key, child.lineno, "methods", methods, MAX_METHODS, "move a responsibility to another class")
            yield from _measure_inside(child, f"{key}.")
        else:
            yield from _measure_inside(child, prefix)


def check(root: Path) -> list[Problem]:
    """Everything over its limit, and every invalid entry of the table."""
    raises = _read_table(root)
    problems: list[Problem] = []
    needed: set[str] = set()
    for source in read_sources(root):
        for item in measure(source):
            entry = raises.get(item.key)
            limit = entry.get(item.unit, item.limit) if isinstance(entry, dict) else item.limit
            if item.size > item.limit:
                needed.add(item.key)
            if not isinstance(limit, int) or item.size > limit:
                what = f"{item.key.split('::')[-1]} has {item.size} {item.unit}, limit {limit}"
                problems.append(Problem(source.path, item.line, what, item.fix))
    for key, entry in raises.items():
        problems += [Problem(CONFIG, 1, *problem) for problem in _check_entry(root, key, entry, key in needed)]
    return problems


def _read_table(root: Path) -> dict[str, Any]:
    config = root / CONFIG
    if not config.exists():
        return {}
    return tomllib.loads(config.read_text("utf-8")).get("tool", {}).get("mstar", {}).get("budget", {})


def _check_entry(root: Path, key: str, entry: Any, needed: bool) -> Iterator[tuple[str, str]]:
    where = f'{TABLE} "{key}"'
    if not isinstance(entry, dict) or set(entry) - {"decision"} not in ({"lines"}, {"methods"}):
        yield f"{where} is not a raise", '{ lines = 700, decision = "docs/decisions/NNNN-why.md" }'
        return
    if not needed:
        yield f"{where} raises a limit that nothing there exceeds", "remove the entry"
    decision = entry.get("decision")
    if not isinstance(decision, str) or not DECISION.fullmatch(decision):
        yield f"{where} names no decision note", 'add decision = "docs/decisions/NNNN-why.md"'
    elif not (root / decision).is_file():
        yield f"{where} names {decision}, which does not exist", "write the note"


if __name__ == "__main__":
    sys.exit(run("budget", check))
