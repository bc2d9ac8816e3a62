"""What processes are told when they start, and the only place that reads the environment.

Settings are plain data: they travel to a child once, through a pipe that only it can read, because they hold the key of
the deployment. Nothing here starts a process, and nothing here changes after the start.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may choose for a deployment."""

    max_live: int = 1024
    """How many requests run at the same time."""
    queue_bound: int = 256
    """How many more may wait; the next one is refused."""
    max_batch: int = 64
    """How many calls share a batch at most."""
    window: int = 64
    """How many emissions of a request may wait for its client before it has to wait too."""
    token_budget: int | None = 512
    """How many positions one run of an op in pieces may bring; None for any number."""
    threads: int | None = None
    """How many threads each worker computes with; None leaves it to the library."""
    failpoints: dict[str, str] = {}
    """For tests of failures: what to do at named points."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a child of the launcher has to know."""

    name: str
    incarnation: int
    """How often this name was started before. Of a conductor, its generation."""
    directory: str
    """Where the addresses of all processes lie."""
    key: bytes
    """What every frame of this deployment is signed with."""
    peers: dict[str, int]
    """Who else is there now, by name with incarnation: the launcher, the conductor, front ends and workers."""
    models: dict[str, str]
    """By name, what `load_model` is given."""
    placements: dict[str, str]
    """By name of the model, the text of its placement file; empty for none."""
    options: Options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}.{self.incarnation})"  # the key must not get into a log


class ConductorSettings(Settings, frozen=True, kw_only=True, tag=True):
    """For a conductor."""


class WorkerSettings(Settings, frozen=True, kw_only=True, tag=True):
    """For a worker."""

    black_box: str
    """Path of the file that says what it was doing when it died."""


def run_root() -> Path:
    """Where run directories are made: the user's own place for such things, or the one for temporary files."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
