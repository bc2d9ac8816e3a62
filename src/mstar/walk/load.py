"""Model loader: build a model from a file (`orpheus.py`, or `orpheus.py:Orpheus`) or from the name of an entry point.

Either can be followed by the location of its weights, as in `orpheus@/models/orpheus` or `orpheus@hub:org/name`, if the
model's constructor has the parameter `weights`. Installed models are entry points of the group `mstar.models`; there is
no other registry.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from mstar.errors import LoadError, format_names, format_site, suggest_name
from mstar.walk import context
from mstar.walk.model import Model

ENTRY_POINT_GROUP = "mstar.models"


def load_model(target: str) -> Model:
    """Build the model of a path or name. Raises LoadError."""
    source, _, weights = target.partition("@")
    path, _, name = source.partition(":")
    cls = _model_from_file(Path(path), name) if path.endswith(".py") else _model_from_entry_point(source)
    parameters = inspect.signature(cls).parameters
    arguments = {"weights": weights} if weights else {}
    if arguments and "weights" not in parameters:
        fix = f"use {source}, without @{weights}"
        raise LoadError(f"{target}: {cls.__name__} does not accept other weights\n  fix: {fix}")
    required = [
        parameter.name
        for parameter in parameters.values()
        if parameter.name not in arguments
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required:
        raise LoadError(
            f"{target}: {cls.__name__}() has parameters without a default: {format_names(required)}\n"
            f"  fix: give them defaults"
        )
    with _as_load_error(f"{target}: {cls.__name__}()"):
        return cls(**arguments)


def default_model_name(target: str) -> str:
    """Served name of a model by default: the file or entry point name."""
    return Path(target.partition("@")[0].partition(":")[0]).stem


@contextmanager
def _as_load_error(action: str) -> Generator[None]:
    """Convert an exception of the author's code into a LoadError with its location."""
    try:
        yield
    except Exception as error:
        problem, fix = f"{action} failed: {type(error).__name__}: {error}", f"see {format_site(_site_of(error))}"
        if isinstance(error, ModuleNotFoundError) and error.name:
            fix = f"install `{error.name.partition('.')[0]}` in this environment, or {fix}"
        raise LoadError(f"{problem}\n  fix: {fix}") from error


def _site_of(error: Exception) -> str:
    """`file:line` at which the author's code raised an exception, or called the library that raised it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = list(traceback.walk_tb(error.__traceback__))
    frame, line = next((each for each in reversed(frames) if context.is_author_frame(each[0])), frames[-1])
    return f"{frame.f_code.co_filename}:{line}"


def _model_from_file(path: Path, name: str) -> type[Model]:
    if not path.is_file():
        siblings = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise LoadError(
            f"{path}: no such file{suggest_name(path.name, siblings)}\n  fix: pass the path of a model's .py file"
        )
    module = _import(path)
    models: dict[str, type[Model]] = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Model) and value.__module__ == module.__name__
    }
    if name and name not in models:
        raise LoadError(
            f"{path}: no model `{name}`{suggest_name(name, models)}\n  fix: use one of {format_names(models)}"
        )
    if not name and len(models) != 1:
        if not models:
            raise LoadError(f"{path}: no model in this file\n  fix: define class MyModel(mstar.Model) with a walk")
        example = f"{path}:{next(iter(models))}"
        raise LoadError(f"{path}: several models: {format_names(models)}\n  fix: name one, for example {example}")
    return models[name] if name else next(iter(models.values()))


def _import(path: Path) -> ModuleType:
    name = f"mstar_model_{path.stem}"  # the stem alone can collide with another module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file always has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up by name
    sys.path.insert(0, str(path.parent.resolve()))  # a model file can import its siblings
    try:
        with _as_load_error(f"{path}: import"):
            spec.loader.exec_module(module)
    except LoadError:
        del sys.modules[name]
        raise
    finally:
        sys.path.pop(0)
    return module


def _model_from_entry_point(name: str) -> type[Model]:
    known = {point.name: point for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    if name not in known:
        raise LoadError(
            f"no installed model `{name}`{suggest_name(name, known)}; installed: {format_names(known)}\n"
            f"  fix: pass the path of a .py file, or install a package with an entry point in {ENTRY_POINT_GROUP}"
        )
    with _as_load_error(f"import of the installed model `{name}`"):
        cls: Any = known[name].load()
    if not (isinstance(cls, type) and issubclass(cls, Model)):
        raise LoadError(
            f"the entry point `{name}` is {cls!r}, not a Model\n  fix: point it at a subclass of mstar.Model"
        )
    return cls
