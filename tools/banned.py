"""Static check for banned calls and imports, on syntax trees. Comments and strings are ignored.

Three bans: unpickling in every spelling (it runs code that the sender chose), everywhere; the process
environment, in src outside src/mstar/config.py (settings are declared in one place); eval and exec, in src.
A name is followed through imports, `as`, plain assignments, `getattr` with a literal and `import_module` with
a literal, so renaming a thing does not hide it. Names built at run time are beyond a tool like this. There is
no inline exception. Run as `python -m tools.banned` in the repository root.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.sources import Problem, Source, read_sources, run

PICKLE = ("unpickling runs code that the sender chose", "msgspec for messages, safetensors for weights")
PROCESSES = ("it pickles what it carries", "start processes with subprocess and talk through mstar.wire")
ENVIRONMENT = ("settings are read in one place", "declare it in src/mstar/config.py and pass the value on")
CODE = ("it runs text as code", "a dict of functions, ast.literal_eval or json")

CONFIG = "src/mstar/config.py"

# Modules, wherever they are imported from: `from six.moves import cPickle`, `torch.serialization.pickle`.
PICKLE_MODULES = frozenset(
    {
        "pickle",
        "cPickle",
        "_pickle",
        "dill",
        "cloudpickle",
        "jsonpickle",
        "marshal",
        "shelve",
        "joblib",
        "copyreg",
        "copy_reg",
        "loky",
        "multiprocess",
        "pathos",
    }
)
# Attributes that are banned on any object.
PICKLE_METHODS = frozenset({"recv_pyobj", "send_pyobj", "read_pickle", "to_pickle", "makePickle"})
# Methods that a class defines for pickling.
PICKLE_HOOKS = frozenset(
    {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"}
)
# Loaders that are safe only with weights_only=True.
WEIGHT_LOADERS = frozenset({"torch.load", "torch.serialization.load", "torch.hub.load_state_dict_from_url"})
# Functions that import the module named by their first argument.
IMPORTERS = frozenset(
    {
        "importlib.import_module",
        "importlib.__import__",
        "builtins.__import__",
        "pkgutil.resolve_name",
        "pytest.importorskip",
    }
)
FOLLOWED_BUILTINS = frozenset({"eval", "exec", "getattr", "__import__"})


def _under(parent: str, rule: tuple[str, str], names: list[str]) -> dict[str, tuple[str, str]]:
    return {f"{parent}.{name}": rule for name in names}


TORCH_OBJECTS = ["all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"]
TORCH_OBJECTS += ["send_object_list", "recv_object_list", "rpc"]
PROCESS_CHANNELS = ["Queue", "SimpleQueue", "JoinableQueue", "Pipe", "Manager", "Pool", "queues", "managers"]
PROCESS_CHANNELS += ["pool", "reduction", "connection.Client", "connection.Listener", "connection.Connection"]
VARIABLES = ["environ", "environb", "getenv", "getenvb", "putenv", "unsetenv", "path.expandvars"]

EVERYWHERE = (
    _under("torch", PICKLE, ["save", "serialization.save", "package"])
    | _under("torch.distributed", PICKLE, TORCH_OBJECTS)
    | _under("multiprocessing", PROCESSES, PROCESS_CHANNELS)
    | _under("torch.multiprocessing", PROCESSES, PROCESS_CHANNELS)
    | _under("concurrent.futures", PROCESSES, ["ProcessPoolExecutor", "process"])
    | _under("logging.handlers", PROCESSES, ["SocketHandler", "DatagramHandler"])
)
IN_SRC = _under("builtins", CODE, ["eval", "exec"])
OUTSIDE_CONFIG = _under("os", ENVIRONMENT, VARIABLES) | {"posix.environ": ENVIRONMENT}


class Origins:
    """Resolves the names of one file to dotted paths: after `import torch as t`, t.load is torch.load.

    Scopes are not told apart: a name stands for everything that it is bound to anywhere in the file.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._paths: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._bind(alias.asname or alias.name.partition(".")[0], {_bound_path(alias)})
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._bind(alias.asname or alias.name, {f"{node.module}.{alias.name}"})
        for _ in range(2):  # twice, because one assignment can depend on another
            for node in ast.walk(tree):
                self._bind_assignment(node)

    def _bind(self, name: str, paths: set[str]) -> None:
        if paths:
            self._paths.setdefault(name, set()).update(paths)

    def _bind_assignment(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            targets = [node.target]
        else:
            return
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                self._bind(target.id, self.of(node.value))

    def of(self, node: ast.expr) -> set[str]:
        """Dotted paths that an expression can refer to. Empty: not an imported name."""
        if isinstance(node, ast.Name):
            if node.id in self._paths:
                return self._paths[node.id]
            return {f"builtins.{node.id}"} if node.id in FOLLOWED_BUILTINS else set()
        if isinstance(node, ast.Attribute):
            return {f"{path}.{node.attr}" for path in self.of(node.value)}
        if isinstance(node, ast.Call):
            return self._of_call(node)
        return set()

    def _of_call(self, call: ast.Call) -> set[str]:
        called = self.of(call.func)
        if called & IMPORTERS:
            name = _literal(call, 0, "name")
            return {name.replace(":", ".")} if name else set()
        if "builtins.getattr" in called:
            name = _literal(call, 1)
            return {f"{path}.{name}" for path in self.of(call.args[0])} if name else set()
        # multiprocessing.get_context("spawn") offers what multiprocessing offers.
        suffix = "multiprocessing.get_context"
        return {path.removesuffix(".get_context") for path in called if path.endswith(suffix)}


def _bound_path(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.partition(".")[0]


def _literal(call: ast.Call, position: int, keyword: str | None = None) -> str | None:
    """The string literal passed to a call at a position or by keyword."""
    values = call.args[position : position + 1] + [k.value for k in call.keywords if keyword and k.arg == keyword]
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def _names_pickle(path: str) -> bool:
    return not PICKLE_MODULES.isdisjoint(re.split(r"[.:]", path))


class Finder:
    """Walks one file and yields (line, what, fix) for everything banned."""

    def __init__(self, source: Source) -> None:
        self._tree = source.tree
        self._origins = Origins(source.tree)
        self._bans = dict(EVERYWHERE)
        if source.path.startswith("src/"):
            self._bans |= IN_SRC
            if source.path != CONFIG:
                self._bans |= OUTSIDE_CONFIG
        self._allowed: set[ast.expr] = set()  # loaders that are called with weights_only=True

    def find(self) -> Iterator[tuple[int, str, str]]:
        for node in ast.walk(self._tree):  # parents come first, so a call is seen before what it calls
            for what, (reason, fix) in self._judge(node):
                yield getattr(node, "lineno", 1), f"{what}: {reason}", fix

    def _judge(self, node: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._judge_import(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from self._judge_import(f"{node.module or ''}.{alias.name}")
        elif isinstance(node, ast.Call):
            yield from self._judge_call(node)
        elif isinstance(node, ast.Attribute | ast.Name):
            yield from self._judge_reference(node)
        elif isinstance(node, ast.Subscript):
            yield from self._judge_subscript(node)
        elif isinstance(node, ast.ClassDef):
            yield from self._judge_class(node)

    def _judge_import(self, path: str) -> Iterator[tuple[str, tuple[str, str]]]:
        if _names_pickle(path) or path.rpartition(".")[2] in PICKLE_METHODS:
            yield f"import of {path}", PICKLE
            return
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            rule = self._bans.get(".".join(parts[:end]))
            if rule:
                yield f"import of {path}", rule

    def _judge_call(self, call: ast.Call) -> Iterator[tuple[str, tuple[str, str]]]:
        called = self._origins.of(call.func)
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if called & WEIGHT_LOADERS and _is_constant(keywords.get("weights_only"), True):
            self._allowed.add(call.func)
        allow_pickle = keywords.get("allow_pickle")
        if "numpy.load" in called and len(call.args) > 2:
            allow_pickle = call.args[2]
        if allow_pickle is not None and not _is_constant(allow_pickle, False):
            yield "allow_pickle", PICKLE
        if called & IMPORTERS:
            name = _literal(call, 0, "name")
            if name and _names_pickle(name):
                yield f"import of {name}", PICKLE
        if "builtins.getattr" in called:
            yield from self._judge_getattr(call)

    def _judge_getattr(self, call: ast.Call) -> Iterator[tuple[str, tuple[str, str]]]:
        name = _literal(call, 1)
        if name in PICKLE_METHODS:
            yield name, PICKLE
        for path in self._origins.of(call):
            yield from self._judge_path(path)

    def _judge_reference(self, node: ast.Attribute | ast.Name) -> Iterator[tuple[str, tuple[str, str]]]:
        if isinstance(node, ast.Attribute) and node.attr in PICKLE_METHODS:
            yield node.attr, PICKLE
        for path in self._origins.of(node):
            if path in WEIGHT_LOADERS:
                if node not in self._allowed and isinstance(node.ctx, ast.Load):
                    yield f"{path} without weights_only=True", (PICKLE[0], "call it with weights_only=True")
            # An imported name is reported once, at its import.
            elif isinstance(node, ast.Attribute) or path.startswith("builtins."):
                yield from self._judge_path(path)

    def _judge_path(self, path: str) -> Iterator[tuple[str, tuple[str, str]]]:
        if path in self._bans:
            yield path, self._bans[path]
        elif path in WEIGHT_LOADERS:
            yield f"{path} without weights_only=True", (PICKLE[0], "call it with weights_only=True")
        elif path.rpartition(".")[2] in PICKLE_MODULES:
            yield path, PICKLE

    def _judge_subscript(self, node: ast.Subscript) -> Iterator[tuple[str, tuple[str, str]]]:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(key, str) and "sys.modules" in self._origins.of(node.value) and _names_pickle(key):
            yield f'sys.modules["{key}"]', PICKLE

    def _judge_class(self, node: ast.ClassDef) -> Iterator[tuple[str, tuple[str, str]]]:
        fix = (PICKLE[0], "a plain function that turns it into a message")
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                names = [item.name]
            elif isinstance(item, ast.Assign):
                names = [target.id for target in item.targets if isinstance(target, ast.Name)]
            else:
                names = []
            yield from ((f"{node.name}.{name}", fix) for name in names if name in PICKLE_HOOKS)


def _is_constant(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def check(root: Path) -> list[Problem]:
    """All banned calls and imports in the tree."""
    return [
        Problem(source.path, line, what, fix)
        for source in read_sources(root)
        for line, what, fix in Finder(source).find()
    ]


if __name__ == "__main__":
    sys.exit(run("banned", check))
