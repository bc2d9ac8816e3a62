"""A child on this host: its process, and the files by which it is known while it lives and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from mstar.config import WorkerConfig
from mstar.launch.process import Process
from mstar.launch.process_handle import ChildConfig
from mstar.launch.reaper import Reaper
from mstar.wire.messages import Peer, Suspect
from mstar.worker import black_box
from mstar.worker.main import loading_progress_path


class LocalProcess(Process):
    """A process that becomes what settings say, in the run directory that they name."""

    host = ""
    _config: ChildConfig | None = None

    def configure(self, config: ChildConfig) -> None:
        """Tell it what it is to be."""
        self._config = config
        self.write_stdin(msgspec.msgpack.encode(config))

    def loading_progress(self) -> tuple[int, str] | None:
        """How many components it has loaded, and which it loads now; None if it loads nothing."""
        if self._config is None:
            return None
        with suppress(OSError, ValueError):  # it has loaded everything, or just begins to write
            done, _, name = (
                loading_progress_path(Path(self._config.directory), _peer(self._config)).read_text().partition(" ")
            )
            return int(done), name
        return None

    def pending_reason(self) -> str:
        """Nothing: this host starts it at once."""
        return ""

    def is_unreachable(self) -> bool:
        """Never: this host knows who has ended."""
        return False

    def crash_suspects(self) -> list[Suspect]:
        """What it was doing when it ended; what it left is removed."""
        settings = self._config
        if settings is None:
            return []
        suspects: list[Suspect] = []
        peer, directory = _peer(settings), Path(settings.directory)
        left = [directory / str(peer), loading_progress_path(directory, peer)]
        if isinstance(settings, WorkerConfig):
            box = Path(settings.black_box)
            suspects = black_box.read(box)
            left.append(box)
        for path in left:
            path.unlink(missing_ok=True)
        return suspects


def _peer(settings: ChildConfig) -> Peer:
    return Peer(settings.name, settings.incarnation)


LocalProcessT = TypeVar("LocalProcessT", bound=LocalProcess)


class LocalStarter(Generic[LocalProcessT]):
    """Starts children on this host, under this process. They die with the thread that starts them."""

    def __init__(
        self, process_type: type[LocalProcessT], command: Sequence[str], on_exit: Callable[[LocalProcessT], None]
    ) -> None:
        self._process_type = process_type
        self._command = tuple(command)
        self._reaper: Reaper[LocalProcessT] = Reaper(on_exit)

    def start(self, name: str) -> LocalProcessT:  # noqa: ARG002  anybody can be anyone here
        """A child that is nothing yet. Raises OSError."""
        life = self._process_type(self._command)
        self._reaper.add(life)
        return life

    def tick(self, now: float) -> None:
        """Nothing here depends on time."""

    def release(self, name: str) -> None:
        """No room is kept here."""

    def close(self) -> None:
        """Watch no more."""
        self._reaper.close()
