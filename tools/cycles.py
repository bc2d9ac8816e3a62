"""Finds import cycles between modules, type-checking imports included.

Every import statement at module level counts, also one under `if TYPE_CHECKING`: two modules that need each other's
types are one module in two files. An import inside a function does not count; it is a deliberate delay.
Run as `python -m tools.cycles` in the repository root.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.sources import Problem, Source, read_sources, run


def module_name(path: str) -> str:
    """The dotted name of a file below src."""
    parts = Path(path).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: Source, modules: frozenset[str]) -> set[str]:
    """The modules of this repository that a file imports at module level."""
    results: set[str] = set()
    for node in _module_level(source.tree):
        if isinstance(node, ast.Import):
            results |= {alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            results |= names & modules or {node.module} & modules
    return results


def _module_level(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _module_level(node)


def find_cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def connect(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                connect(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                cycles.append(sorted(component))

    for module in sorted(graph):
        if module not in index:
            connect(module)
    return cycles


def check(root: Path) -> list[Problem]:
    """One problem per cycle, at the first of its modules."""
    sources = {module_name(source.path): source for source in read_sources(root, ("src",))}
    modules = frozenset(sources)
    graph = {module: imports_of(source, modules) - {module} for module, source in sources.items()}
    fix = "move what both need into a module of its own, or pass it in"
    return [
        Problem(sources[cycle[0]].path, 1, f"import cycle: {', '.join(cycle)}", fix) for cycle in find_cycles(graph)
    ]


if __name__ == "__main__":
    sys.exit(run("cycles", check))
