"""AdapterRegistry: the LoRA adapters that requests can name, by model.

Workers are not told: a request carries the folder and the checksum of its adapter. So an adapter can be removed while
requests run with it, and they finish. Several front ends share the registry as a file, which a front end reads again
when it has changed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mstar.requests import Adapter
from mstar.walk.model import Model

SETTING = "adapters"
"""Setting of components that can have adapters."""
_Adapters = dict[str, dict[str, Adapter]]


def adapted_component(model: Model) -> str | None:
    """The component of a model that adapters change; None if it has none, or several."""
    names = [name for name, component in model.components().items() if SETTING in component.supported_settings]
    return names[0] if len(names) == 1 else None


class AdapterRegistry:
    """Adapters by model and name."""

    def __init__(self) -> None:
        self._adapters: _Adapters = {}
        self._file: Path | None = None
        self._version: tuple[int, int] | None = None
        """Inode and modification time of the content of the file."""

    def share(self, file: Path) -> None:
        """Share the registry with the other front ends. The first one writes what it has, later ones read it."""
        self._file = file
        with self._locked():
            if not file.exists():
                self._write()

    def get(self, model: str, name: str) -> Adapter | None:
        """The adapter of a model with this name."""
        self._refresh()
        return self._adapters.get(model, {}).get(name)

    def of_model(self, model: str) -> Mapping[str, Adapter]:
        """All adapters of a model by name."""
        self._refresh()
        return self._adapters.get(model, {})

    def add(self, model: str, adapter: Adapter) -> Adapter:
        """Add an adapter unless there is one with its name; return the one that is there now."""
        with self._changing():
            return self._adapters.setdefault(model, {}).setdefault(adapter.name, adapter)

    def remove(self, model: str, name: str) -> Adapter | None:
        """Remove an adapter, and return it; None if there is none."""
        with self._changing():
            return self._adapters.get(model, {}).pop(name, None)

    # ---------------------------------------------------------------- file
    @contextmanager
    def _changing(self) -> Generator[None]:
        with self._locked():
            self._refresh()
            yield
            self._write()

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Wait until no other front end changes the file."""
        if self._file is None:
            yield
            return
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _refresh(self) -> None:
        if self._file is not None and (version := self._file_version(self._file)) != self._version:
            self._adapters = msgspec.json.decode(self._file.read_bytes(), type=_Adapters)
            self._version = version

    def _write(self) -> None:
        if self._file is not None:
            temporary = self._file.with_suffix(".new")
            temporary.write_bytes(msgspec.json.encode(self._adapters))
            temporary.replace(self._file)
            self._version = self._file_version(self._file)

    @staticmethod
    def _file_version(file: Path) -> tuple[int, int]:
        status = os.stat(file)
        return status.st_ino, status.st_mtime_ns
