"""Finding a model: a file (`orpheus.py`, or `orpheus.py:Orpheus` where it holds several), or an installed name.

Either may be followed by where its weights are, as `orpheus@/models/orpheus` or `orpheus@hub:name/of-it`, if the model
takes `weights`. Installed models are entry points of the group `mstar.models`; nobody edits a registry.
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
from mstar.walk.model import Model

ENTRY_POINT_GROUP = "mstar.models"


def load_model(target: str) -> Model:
    """The model that a path or name stands for, built. Raises LoadError with what to do."""
    where, _, weights = target.partition("@")
    path, _, name = where.partition(":")
    found = _model_from_file(Path(path), name) if path.endswith(".py") else _model_from_entry_point(where)
    parameters, given = inspect.signature(found).parameters, {"weights": weights} if weights else {}
    if given and "weights" not in parameters:
        fix = f"{where}, without what is after the @"
        raise LoadError(f"{target}: {found.__name__} brings its weights, and takes no others\n  fix: {fix}")
    needed = [
        parameter.name
        for parameter in parameters.values()
        if parameter.name not in given
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise LoadError(
            f"{target}: {found.__name__} cannot be made without {format_names(needed)}\n  fix: give them defaults"
        )
    with _as_load_error(f"{target}: making {found.__name__}()"):
        return found(**given)


def default_model_name(target: str) -> str:
    """What a model is called unless it is told otherwise."""
    return Path(target.partition("@")[0].partition(":")[0]).stem


@contextmanager
def _as_load_error(doing: str) -> Generator[None]:
    """What an author's code raises becomes a LoadError that says what was being done."""
    try:
        yield
    except Exception as error:
        what = f"{doing} failed: {type(error).__name__}: {error}"
        frame = error if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)[-1]
        raise LoadError(f"{what}\n  fix: look at {format_site(f'{frame.filename}:{frame.lineno}')}") from error


def _model_from_file(path: Path, name: str) -> type[Model]:
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise LoadError(
            f"{path}: no such file{suggest_name(path.name, beside)}\n  fix: pass the path of a model's .py file"
        )
    module = _import(path)
    models: dict[str, type[Model]] = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Model) and value.__module__ == module.__name__
    }
    if name and name not in models:
        raise LoadError(
            f"{path}: it has no model `{name}`{suggest_name(name, models)}\n  fix: use one of {format_names(models)}"
        )
    if not name and len(models) != 1:
        if not models:
            raise LoadError(f"{path}: it holds no model\n  fix: class MyModel(mstar.Model), with a walk")
        which = f"{path}:{next(iter(models))}"
        raise LoadError(f"{path}: it holds the models {format_names(models)}, so one must be named\n  fix: {which}")
    return models[name] if name else next(iter(models.values()))


def _import(path: Path) -> ModuleType:
    name = f"mstar_model_{path.stem}"  # its own name could be that of a module which others need
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file always has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up by name
    sys.path.insert(0, str(path.parent.resolve()))  # a model may import what lies beside it
    try:
        with _as_load_error(f"{path}: importing it"):
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
            f"no installed model is called `{name}`{suggest_name(name, known)}; there are {format_names(known)}\n"
            f"  fix: pass the path of a model's .py file, or install a package with an entry point in {ENTRY_POINT_GROUP}"
        )
    with _as_load_error(f"importing the installed model `{name}`"):
        found: Any = known[name].load()
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise LoadError(
            f"the entry point `{name}` is {found!r}, not a Model\n  fix: point it at a subclass of mstar.Model"
        )
    return found
