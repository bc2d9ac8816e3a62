"""Moves files with git, and rewrites import paths in code and dotted or slashed paths in text files."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path.cwd()
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".json",
    ".js",
    ".html",
    ".css",
    ".txt",
    ".cpp",
    ".h",
    ".sh",
    "",
}
DONE = "\x00"
"""Stands before an import path that was rewritten already."""


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True).stdout
    return [path for path in listed.splitlines() if (ROOT / path).is_file() and not (ROOT / path).is_symlink()]


def module_of(path: str) -> str | None:
    if not path.endswith(".py"):
        return None
    parts = Path(path).with_suffix("").parts
    if parts[0] == "src":
        parts = parts[1:]
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def move_files(table_moves: Mapping[str, str]) -> list[str]:
    """Move the files with git, in two steps so that names can be swapped, and rewrite every path to them."""
    problems: list[str] = []
    moves = {old: new for old, new in table_moves.items() if old != new and (ROOT / old).exists()}
    problems += [f"move {old}: no such file" for old in table_moves.keys() - moves.keys() if old != table_moves[old]]
    for old, new in moves.items():
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old, f"{new}.moving"], check=True)
    for old, new in moves.items():
        if (ROOT / new).exists():
            problems.append(f"move {old}: {new} exists")
        else:
            subprocess.run(["git", "mv", f"{new}.moving", new], check=True)
    _add_package_markers(moves.values())
    modules = {module_of(old): module_of(new) for old, new in moves.items()}
    slashed: dict[str, str] = {}
    for old, new in moves.items():
        for prefix in ("", "src/", "src/mstar/"):
            if old.startswith(prefix) and "/" in old.removeprefix(prefix):
                slashed[old.removeprefix(prefix)] = new.removeprefix(prefix)
    rewrite_paths({old: new for old, new in modules.items() if old and new and old != new}, slashed)
    return problems


def _add_package_markers(paths: Iterable[str]) -> None:
    for path in paths:
        folder = Path(path).parent
        while path.endswith(".py") and folder.parts[:2] == ("src", "mstar"):
            marker = ROOT / folder / "__init__.py"
            if not marker.exists():
                marker.write_text("", "utf-8")
                subprocess.run(["git", "add", str(marker)], check=True)
            folder = folder.parent


def rewrite_paths(modules: dict[str, str], slashed: dict[str, str]) -> None:
    dotted = _any_of(modules, rf"(?<![\w.{DONE}])", r"(?!\w)")
    slash = _any_of(slashed, r"(?<![\w/.-])", r"(?![\w/])")
    for path in tracked():
        if Path(path).suffix not in TEXT_SUFFIXES or path.startswith("bench/results"):
            continue
        try:
            text = (ROOT / path).read_text("utf-8")
        except UnicodeDecodeError:
            continue
        before = text
        if path.endswith(".py"):
            text = rewrite_from_imports(text, modules)
        text = dotted.sub(lambda m: modules[m.group(1)], text)
        text = slash.sub(lambda m: slashed[m.group(1)], text)
        text = text.replace(DONE, "")
        if text != before:
            (ROOT / path).write_text(text, "utf-8")


def _any_of(words: Iterable[str], before: str, after: str) -> re.Pattern[str]:
    longest_first = sorted(map(re.escape, words), key=len, reverse=True)
    return re.compile(f"{before}({'|'.join(longest_first)}){after}" if longest_first else r"(?!)()")


def rewrite_from_imports(text: str, modules: dict[str, str]) -> str:
    """Rewrite `from package import module` where the module moved, and the uses of its name in this file."""
    tree = ast.parse(text)
    lines = text.split("\n")
    renamed: dict[str, str] = {}
    for node in reversed([n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module and not n.level]):
        moved = [a for a in node.names if f"{node.module}.{a.name}" in modules]
        if not moved:
            continue
        kept = [a for a in node.names if a not in moved]
        indent = " " * node.col_offset
        out = []
        if kept:
            out.append(f"{indent}from {node.module} import " + ", ".join(_alias(a.name, a.asname) for a in kept))
        for alias in moved:
            package, _, name = modules[f"{node.module}.{alias.name}"].rpartition(".")
            out.append(f"{indent}from {DONE}{package} import {_alias(name, alias.asname)}")
            if alias.asname is None and alias.name != name:
                renamed[alias.name] = name
        assert node.end_lineno is not None
        lines[node.lineno - 1 : node.end_lineno] = out
    text = "\n".join(lines)
    if not renamed:
        return text
    lines = text.split("\n")
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for index in range(len(tokens) - 2, -1, -1):
        token = tokens[index]
        if token.type == tokenize.NAME and token.string in renamed and tokens[index + 1].string in {".", ")", ","}:
            if index and tokens[index - 1].string == ".":
                continue
            line, column = token.start
            lines[line - 1] = (
                lines[line - 1][:column] + renamed[token.string] + lines[line - 1][column + len(token.string) :]
            )
    return "\n".join(lines)


def _alias(name: str, asname: str | None) -> str:
    return f"{name} as {asname}" if asname else name
