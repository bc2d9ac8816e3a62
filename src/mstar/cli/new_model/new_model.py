"""`mstar new NAME`: write a folder with a model that runs, its test, a placement and a model card.

The files are in `template/`. The model has two components, a state, a batched op, a stream and two walks; its networks
are small and random. Authors replace one part after the other and keep a model that runs.
"""

from __future__ import annotations

import argparse
import keyword
from importlib import resources
from pathlib import Path
from string import Template

from mstar.errors import LoadError

TEMPLATES = {
    "model.py.txt": "{module}.py",
    "test_model.py.txt": "test_{module}.py",
    "placement.toml.txt": "placement.toml",
    "README.md.txt": "README.md",
}


def add_new(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    text = "Write a new model that runs, with its test, a placement and a model card."
    new = commands.add_parser("new", help=text, description=text)
    new.add_argument("name", help="Name of the model, a Python identifier such as my_model: also that of the folder.")
    new.set_defaults(run=lambda options: _new(options.name, Path(options.name)))


def _new(module: str, folder: Path) -> None:
    if not module.isidentifier() or keyword.iskeyword(module):
        fix = "use letters, digits and underscores, such as my_model"
        raise LoadError(f"{module!r} cannot be the name of a Python module\n  fix: {fix}")
    if folder.exists():
        raise LoadError(f"{folder} exists already\n  fix: choose another name, or remove it")
    folder.mkdir()
    names = {"module": module, "class_name": "".join(word.capitalize() for word in module.split("_"))}
    for template, name in TEMPLATES.items():
        text = (resources.files("mstar.cli.new_model") / "template" / template).read_text(encoding="utf-8")
        path = folder / name.format(module=module)
        path.write_text(Template(text).substitute(names), encoding="utf-8")
        print(path)
    print(f"\nnext: cd {folder} && mstar check {module}.py && mstar run {module}.py 'Hello'")
