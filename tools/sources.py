"""Sources and problem reports of the checks in this folder.

Every check is a function from a repository root to a list of problems, and every problem is one line:
`file:line: what is wrong, fix: what to write`.
"""

import ast
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

TREES = ("src", "tests", "bench", "tools", "examples")


@dataclass(frozen=True, order=True)
class Problem:
    file: str
    line: int
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}, fix: {self.fix}"


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root with forward slashes, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module


def read_sources(root: Path, trees: tuple[str, ...] = TREES) -> Iterator[Source]:
    """All Python files below some folders, in order. Missing folders are skipped."""
    for tree in trees:
        for file in sorted((root / tree).rglob("*.py")):
            with tokenize.open(file) as opened:
                text = opened.read()
            path = file.relative_to(root).as_posix()
            yield Source(path, text, ast.parse(text, filename=path))


def run(name: str, check: Callable[[Path], list[Problem]]) -> int:
    """Run one check on the current folder and print its problems. Returns the exit code."""
    problems = sorted(set(check(Path.cwd())))
    for problem in problems:
        print(problem)
    if problems:
        print(f"{name}: {len(problems)} problem(s)", file=sys.stderr)
    return 1 if problems else 0
