"""Refuses names that say nothing: docs/glossary.md lists the words and what to write instead.

A class, file or folder name in src must not contain one of the words (BaseWorker, io_utils.py), and no
function begins with `get_`. A word counts only as a whole part of a name: `baseline` and `database` are
fine. Run as `python -m tools.names` in the repository root.
"""

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath

from tools.sources import Problem, read_sources, run

REFUSED = frozenset({"manager", "util", "helper", "info", "metadata", "base", "common", "misc", "impl"})
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def refused_words(name: str) -> list[str]:
    """The refused words in a name, whether it is written in CamelCase or in snake_case; plurals count."""
    words = [word.lower() for word in WORD.findall(name)]
    found = [word for word in words if word in REFUSED or word.removesuffix("s") in REFUSED]
    # MetaData is the word that was meant, in two parts.
    pairs = ["".join(pair) for pair in pairwise(words)]
    return found + [pair for pair in pairs if pair in REFUSED]


def check(root: Path) -> list[Problem]:
    """Every refused name in src."""
    problems: list[Problem] = []
    for source in read_sources(root, ("src",)):
        for part in PurePosixPath(source.path).with_suffix("").parts:
            problems += [_refuse(source.path, 1, part, word) for word in refused_words(part)]
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                words = refused_words(node.name)
                problems += [_refuse(source.path, node.lineno, node.name, word) for word in words]
        problems += _getters(source.path, source.tree)
    return problems


def _refuse(path: str, line: int, name: str, word: str) -> Problem:
    return Problem(path, line, f'the name {name} contains "{word}"', "name what it does or holds")


def _getters(path: str, tree: ast.Module) -> Iterator[Problem]:
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and re.match(r"_{0,2}get_(?!_)", node.name):
            fix = "a noun for what it returns, or a verb for what it does (read, find, make)"
            yield Problem(path, node.lineno, f"the function {node.name} begins with get_", fix)


if __name__ == "__main__":
    sys.exit(run("names", check))
