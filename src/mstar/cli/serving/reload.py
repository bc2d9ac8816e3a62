"""`mstar serve --reload`: restart the server when a source file of its models changes, for development.

The server runs in a child process. When a watched file changes, the child gets SIGTERM, so running requests finish as
in any shutdown; then a new child starts with the new code. A child that fails, such as by an import error, has printed
the file and line; the next one starts after the next change. Files are compared every POLL_S seconds: the Python files
in the folders of the models and below, outside site-packages, and the manifest and placement files.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from mstar.cli.config import ServeConfig
from mstar.errors import LoadError, format_names
from mstar.walk.load import ENTRY_POINT_GROUP

FLAG = "--reload"
POLL_S = 0.5
"""Seconds between two looks at the files."""
_SKIPPED_FOLDERS = ("__pycache__", "node_modules", "site-packages", "dist-packages")
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1

FileTimes = Mapping[Path, int]
"""Modification time of each file, in nanoseconds."""


def serve_with_reload(options: argparse.Namespace, config: ServeConfig, arguments: Sequence[str]) -> None:
    """Run `mstar` with these arguments, without the flag, until SIGTERM or SIGINT. Raises LoadError."""
    watched = [*_source_folders(config)]
    files = [Path(config.manifest.path)] if config.manifest else []
    files += [options.placement] if options.placement else []
    if not watched and not files:
        raise LoadError(
            f"{FLAG}: the code of {format_names(config.models)} is in installed packages, which do not change\n"
            "  fix: serve a model's .py file, or install its package with pip install -e"
        )
    # argparse accepts abbreviations of a flag.
    command = [argument for argument in arguments if len(argument) <= len("--") or not FLAG.startswith(argument)]
    Reloader([sys.executable, "-m", "mstar.cli", *command], watched, files).run()


class Reloader:
    """Runs a command again whenever a file changes."""

    def __init__(self, command: Sequence[str], folders: Sequence[Path], files: Sequence[Path]) -> None:
        self._command = command
        self._folders = folders
        self._files = files
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Return after SIGTERM or SIGINT, when the child has ended."""
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, self._on_signal)
        while not self._stopping.is_set():
            before = self._file_times()
            # A process group of its own: Ctrl-C reaches the child through `_on_signal` only.
            with subprocess.Popen(
                self._command,
                process_group=0,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread
            ) as self._child:
                changed = self._wait_for_change(before, self._child)
                if changed:
                    _print(f"changed: {', '.join(changed)}; restarting")
                    self._child.send_signal(signal.SIGTERM)  # does nothing if it has ended
                self._child.wait()

    def _on_signal(self, _signal: int, _frame: object) -> None:
        """Drain and end; a second signal ends running requests, as without the reloader."""
        self._stopping.set()
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def _wait_for_change(self, before: FileTimes, child: subprocess.Popen[bytes]) -> list[str]:
        """Names of the files that changed; empty if the reloader must end."""
        is_running = True
        while not self._stopping.wait(POLL_S):
            if is_running and child.poll() is not None:
                is_running = False
                _print(f"the server ended with status {child.returncode}; waiting for a change")
            now = self._file_times()
            if changed := sorted(path.name for path, _ in {*before.items()} ^ {*now.items()}):
                return list(dict.fromkeys(changed))
        return []

    def _file_times(self) -> dict[Path, int]:
        times: dict[Path, int] = {}
        for path in (*self._files, *_python_files(self._folders)):
            try:
                times[path] = path.stat().st_mtime_ns
            except OSError:  # an editor replaces the file at this moment
                continue
        return times


def _end_with_parent() -> None:
    """Send SIGTERM to this process when its parent dies, so that no server stays behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _python_files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        for parent, names, files in os.walk(folder):
            names[:] = [
                name
                for name in names
                if name not in _SKIPPED_FOLDERS
                and not name.startswith(".")
                and not Path(parent, name, "pyvenv.cfg").exists()
            ]
            yield from (Path(parent, file) for file in files if file.endswith(".py"))


def _source_folders(config: ServeConfig) -> Iterator[Path]:
    """Folders with the code of the models, except installed packages."""
    modules = {point.name: point.module for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    for target in config.models.values():
        source = target.partition("@")[0].partition(":")[0]
        if source.endswith(".py"):
            yield Path(source).resolve().parent
        elif source in modules:
            package = importlib.util.find_spec(modules[source].partition(".")[0])
            folders = [Path(folder) for folder in (package and package.submodule_search_locations) or ()]
            yield from (folder for folder in folders if not {*_SKIPPED_FOLDERS} & {*folder.parts})


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
