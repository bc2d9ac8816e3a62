"""Reference: a class of transformers, read for a port: its parts, the order in which `forward` calls them, its inputs.

It reads source code, with the line of everything it reports, and runs nothing of it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar.errors import LoadError, suggest_name


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the reference."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Part:
    """A module of the reference that has weights."""

    path: str
    """Attributes that lead to it, such as `model.layers`."""
    class_name: str
    parameters: int
    place: Place


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the reference that a port must handle by hand."""

    what: str
    place: Place


class Reference:
    """A network class of transformers. Raises LoadError if there is none of this name."""

    def __init__(self, class_name: str) -> None:
        import transformers

        kind = getattr(transformers, class_name, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            near = suggest_name(class_name, [name for name in dir(transformers) if name.endswith(_ENDINGS)])
            fix = "use the name in `architectures` of a config.json, such as LlamaForCausalLM"
            raise LoadError(f"transformers {transformers.__version__} has no network {class_name}{near}\n  fix: {fix}")
        self.network_class: Any = kind
        self.config_class: Any = kind.config_class
        self.inputs = inspect.signature(kind.forward).parameters
        """Parameters of `forward`."""

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.network_class.__name__

    @property
    def generates(self) -> bool:
        """Whether it has a `generate` of transformers."""
        from transformers import GenerationMixin

        return issubclass(self.network_class, GenerationMixin)

    @property
    def place(self) -> Place:
        """Where the class is defined."""
        return place_of(self.network_class)

    def parts(self, network: Any, depth: int = 2) -> Iterator[Part]:
        """The modules of an instance down to this depth that have weights."""
        for path, module in network.named_modules():
            count = sum(weight.numel() for weight in module.parameters())
            if path and path.count(".") < depth and count and not path.rpartition(".")[2].isdigit():
                yield Part(path, type(module).__name__, count, place_of(type(module)))

    def calls(self, network: Any) -> Iterator[tuple[str, Place]]:
        """The modules that `forward` calls, in the order of its lines: `self.encoder(...)` is `encoder`."""
        names = dict(network.named_children())
        for node, place in _nodes(self.network_class.forward):
            if isinstance(node, ast.Call) and (name := _attribute_of_self(node.func)) in names:
                yield str(name), place

    def findings(self, network: Any) -> Iterator[Finding]:
        """What a port must handle by hand, in all classes of the network."""
        own = {
            type(module) for module in network.modules() if type(module).__module__.startswith("transformers.models.")
        }
        for kind in sorted(own, key=lambda one: (place_of(one.forward).file, place_of(one.forward).line)):
            training = list[range]()
            for node, place in _nodes(kind.forward):
                if isinstance(node, ast.If) and "training" in ast.unparse(node.test):
                    training.append(range(node.lineno, node.body[-1].lineno + 1))
                elif (what := _finding(node)) and not any(_line(node) in lines for lines in training):
                    yield Finding(f"{kind.__name__}.forward {what}", place)
        if "generate" in vars(self.network_class):
            yield Finding("its own `generate`: write its loops as a walk", place_of(self.network_class.generate))


_ENDINGS = ("Model", "ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForCTC", "ForSequenceClassification")
_RANDOM = ("rand", "randn", "randn_like", "rand_like", "randint", "multinomial", "normal", "bernoulli", "randperm")


@functools.cache
def place_of(code: Any) -> Place:
    """Where a class or function is defined, below site-packages. For a class, Python parses its whole file."""
    code = inspect.unwrap(code)
    path = Path(inspect.getsourcefile(code) or "?")
    parts = path.parts
    short = "/".join(parts[parts.index("site-packages") + 1 :]) if "site-packages" in parts else path.name
    return Place(short, inspect.getsourcelines(code)[1])


def _nodes(function: Any) -> Iterator[tuple[ast.AST, Place]]:
    """The nodes of a function with their lines, in order."""
    function = inspect.unwrap(function)
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return
    file, tree = place_of(function).file, ast.parse(textwrap.dedent("".join(lines)))
    for node in sorted((one for one in ast.walk(tree) if _line(one)), key=_line):
        yield node, Place(file, first + _line(node) - 1)


def _line(node: ast.AST) -> int:
    """Line of a node in its function, 0 if it has none."""
    return getattr(node, "lineno", 0)


def _attribute_of_self(node: ast.AST) -> str | None:
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_own and isinstance(node, ast.Attribute) else None


def _finding(node: ast.AST) -> str | None:
    """What a node does that a port must handle by hand; None for most nodes."""
    if isinstance(node, ast.Assign):
        kept = next((name for name in map(_attribute_of_self, node.targets) if name), None)
        return f"keeps `self.{kept}` between calls: it belongs in a State of the request" if kept else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _RANDOM:
        if isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "random":
            return None  # numpy's, for dropped layers during training
        return f"draws random numbers (`{node.func.attr}`): draw them from the seed of the request"
    return None
