"""Writes the signatures of the functions of FlashInfer that mstar calls, as data for tests that need no FlashInfer.

Run as `python -m tools.flashinfer_signatures [WHEEL]` in the repository root. It reads the source of a wheel, or of the
installed package, and imports nothing of it.
"""

import ast
import json
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TABLE = Path("tests/nn/kv/flashinfer_signatures.json")
_WRAPPER = ("__init__", "plan", "run", "reset_workspace_buffer")
FUNCTIONS = {
    "page.py": ("append_paged_kv_cache",),
    "prefill.py": tuple(f"BatchPrefillWithPagedKVCacheWrapper.{name}" for name in _WRAPPER),
    # `plan` passes its keyword arguments to `_plan_impl`.
    "decode.py": tuple(f"BatchDecodeWithPagedKVCacheWrapper.{name}" for name in (*_WRAPPER, "_plan_impl")),
}
"""Names of functions and methods, by file."""


def read_signatures(read: Callable[[str], str]) -> dict[str, list[dict[str, str]]]:
    """Parameters of all functions. `read` returns the source of a file of the package."""
    signatures: dict[str, list[dict[str, str]]] = {}
    for file, names in FUNCTIONS.items():
        tree = ast.parse(read(file))
        for name in names:
            signatures[name] = _parameters(_find(tree, name.split(".")))
    return signatures


def _find(tree: Any, path: list[str]) -> ast.FunctionDef:
    """The last definition with this name: those before are overloads."""
    for name in path:
        tree = [node for node in tree.body if getattr(node, "name", None) == name][-1]
    return tree


def _parameters(function: ast.FunctionDef) -> list[dict[str, str]]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + [*given.defaults]
    rows = [(arg, "POSITIONAL_OR_KEYWORD", default) for arg, default in zip(positional, defaults, strict=True)]
    rows += [(given.vararg, "VAR_POSITIONAL", None)] if given.vararg else []
    rows += [(arg, "KEYWORD_ONLY", default) for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    rows += [(given.kwarg, "VAR_KEYWORD", None)] if given.kwarg else []
    return [
        {"name": arg.arg, "kind": kind} | ({} if default is None else {"default": ast.unparse(default)})
        for arg, kind, default in rows
    ]


def read_wheel(wheel: Path) -> dict[str, Any]:
    """The table of a wheel."""
    with zipfile.ZipFile(wheel) as files:
        signatures = read_signatures(lambda name: files.read(f"flashinfer/{name}").decode())
    return {"version": wheel.name.split("-")[1], "signatures": signatures}


def read_installed() -> dict[str, Any]:
    """The table of the installed package."""
    spec = find_spec("flashinfer")
    if spec is None or spec.origin is None:
        raise SystemExit("flashinfer is not installed\n  fix: pass the path of its wheel")
    folder = Path(spec.origin).parent
    return {
        "version": version("flashinfer-python"),
        "signatures": read_signatures(lambda name: (folder / name).read_text()),
    }


if __name__ == "__main__":
    table = read_wheel(Path(sys.argv[1])) if sys.argv[1:] else read_installed()
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{TABLE}: {len(table['signatures'])} functions of FlashInfer {table['version']}")
