"""Runs a tutorial: the code blocks of a page in their order, and compares what they print with the blocks after them.

| block | what is done |
|---|---|
| a language with `title="FILE"` | written to that file |
| `python` | executed; all blocks of a page share their names |
| `bash` | each `mstar` command is run; `mstar serve FILE` serves the model, over HTTP, until the end of the page |
| `text` | compared with what the block before it printed |
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar.cli.main import main
from mstar.walk.load import load_model
from tests.server.model_server import serve_models

FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SERVER = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    file: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*match) for match in FENCE.findall(page.read_text("utf-8"))]


def run(page: Path, read_printed: Callable[[], str]) -> Iterator[tuple[str, str]]:
    """Run a page in the current folder. Yields each expected output with the actual one."""
    scope: dict[str, Any] = {"__name__": "tutorial"}
    printed, server = "", SERVER
    with ExitStack() as stack:
        for block in blocks(page):
            if block.file:
                Path(block.file).write_text(block.text, "utf-8")
            elif block.language == "python":
                exec(compile(block.text.replace(SERVER, server), str(page), "exec"), scope)
                printed = read_printed()
            elif block.language == "bash":
                for line in block.text.splitlines():
                    _, command, *arguments = shlex.split(line, comments=True)
                    if command == "serve":
                        model = load_model(arguments[0])
                        server = stack.enter_context(serve_models({Path(arguments[0]).stem: model})).url
                    else:
                        assert main([command, *arguments]) == 0, line
                printed = read_printed()
            elif block.language == "text":
                yield block.text.rstrip(), "\n".join(line.rstrip() for line in printed.splitlines()).rstrip()


def forget_modules(folder: Path) -> None:
    """Drop the modules of a tutorial: another one can have files of the same names."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
