"""Control group that freezes processes, as `docker pause` does. Versions 1 and 2 of control groups."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


class Freezer:
    """A new group below the one of this process. Raises OSError if there is no permission, or no freezer."""

    def __init__(self, name: str) -> None:
        self._parent, self._switch, self._words = _own_group()
        self._group = self._parent / name
        self._group.mkdir(exist_ok=True)
        if not (self._group / self._switch).exists():
            self._group.rmdir()
            raise FileNotFoundError(2, f"no {self._switch}")

    def freeze(self, pids: Iterable[int]) -> None:
        """Move processes into the group and freeze it."""
        for pid in pids:
            with suppress(ProcessLookupError):
                (self._group / "cgroup.procs").write_text(str(pid))
        (self._group / self._switch).write_text(self._words[0])

    def thaw(self) -> None:
        """Resume the processes, move them back and remove the group."""
        (self._group / self._switch).write_text(self._words[1])
        while pids := (self._group / "cgroup.procs").read_text().split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    (self._parent / "cgroup.procs").write_text(pid)
        self._group.rmdir()


def _own_group() -> tuple[Path, str, tuple[str, str]]:
    """Directory of the group of this process, the file that freezes a group, and what to write to it."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "freezer" in controllers.split(","):
            return ROOT / "freezer" / path.lstrip("/"), "freezer.state", ("FROZEN", "THAWED")
    path = next((path for number, _, path in lines if number == "0"), "/")
    return ROOT / path.lstrip("/"), "cgroup.freeze", ("1", "0")
