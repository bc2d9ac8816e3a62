"""A child on this host: its process, and the files by which it is known while it lives and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from mstar.config import WorkerSettings
from mstar.launch.process import Process
from mstar.launch.running import ChildSettings
from mstar.launch.watch import Watch
from mstar.wire.messages import Peer, Suspect
from mstar.worker import blackbox
from mstar.worker.process import loading_file


class Life(Process):
    """A process that becomes what settings say, in the run directory that they name."""

    host = ""
    _settings: ChildSettings | None = None

    def become(self, settings: ChildSettings) -> None:
        """Tell it what it is to be."""
        self._settings = settings
        self.give(msgspec.msgpack.encode(settings))

    def loading(self) -> tuple[int, str] | None:
        """How many components it has loaded, and which it loads now; None if it loads nothing."""
        if self._settings is None:
            return None
        with suppress(OSError, ValueError):  # it has loaded everything, or just begins to write
            done, _, name = (
                loading_file(Path(self._settings.directory), _peer(self._settings)).read_text().partition(" ")
            )
            return int(done), name
        return None

    def waits(self) -> str:
        """Nothing: this host starts it at once."""
        return ""

    def is_lost(self) -> bool:
        """Never: this host knows who has ended."""
        return False

    def remains(self) -> list[Suspect]:
        """What it was doing when it ended; what it left is removed."""
        settings = self._settings
        if settings is None:
            return []
        suspects: list[Suspect] = []
        peer, directory = _peer(settings), Path(settings.directory)
        left = [directory / str(peer), loading_file(directory, peer)]
        if isinstance(settings, WorkerSettings):
            box = Path(settings.black_box)
            suspects = blackbox.read(box)
            left.append(box)
        for path in left:
            path.unlink(missing_ok=True)
        return suspects


def _peer(settings: ChildSettings) -> Peer:
    return Peer(settings.name, settings.incarnation)


Lived = TypeVar("Lived", bound=Life)


class Here(Generic[Lived]):
    """Starts children on this host, under this process. They die with the thread that starts them."""

    def __init__(self, kind: type[Lived], command: Sequence[str], died: Callable[[Lived], None]) -> None:
        self._kind = kind
        self._command = tuple(command)
        self._watch: Watch[Lived] = Watch(died)

    def start(self, name: str) -> Lived:  # noqa: ARG002  anybody can be anyone here
        """A child that is nothing yet. Raises OSError."""
        life = self._kind(self._command)
        self._watch.add(life)
        return life

    def tick(self, now: float) -> None:
        """Nothing here depends on time."""

    def rest(self, name: str) -> None:
        """No room is kept here."""

    def close(self) -> None:
        """Watch no more."""
        self._watch.close()
