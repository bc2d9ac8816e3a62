"""Child process on this host: its configuration, loading progress, and the black box it leaves after a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from mstar.config import WorkerConfig
from mstar.launch.os_process.oom_kills import OomKills
from mstar.launch.os_process.process import Process
from mstar.launch.os_process.reaper import Reaper
from mstar.launch.process_handle import ChildConfig
from mstar.wire.message import worker_of
from mstar.wire.messages import Peer, Suspect
from mstar.worker import black_box
from mstar.worker.loading import loading_progress_path


class LocalProcess(Process):
    """Child process that gets its role from the configuration on stdin."""

    host = ""
    _config: ChildConfig | None = None

    def configure(self, config: ChildConfig) -> None:
        """Send its configuration."""
        self._config = config
        self.forwarder.process = config.name
        self.write_stdin(msgspec.msgpack.encode(config))

    def loading_progress(self) -> tuple[int, str] | None:
        """Number of loaded components, and the one being loaded; None if it is not loading."""
        if self._config is None:
            return None
        with suppress(OSError, ValueError):  # fully loaded, or the file is being written
            done, _, name = (
                loading_progress_path(Path(self._config.directory), _peer(self._config)).read_text().partition(" ")
            )
            return int(done), name
        return None

    def pending_reason(self) -> str:
        """Always empty: a local process starts at once."""
        return ""

    def is_unreachable(self) -> bool:
        """Always False: the exit of a local process is known."""
        return False

    def crash_suspects(self) -> list[Suspect]:
        """Requests of its last batch, from the black box. Removes the files that it left behind."""
        config = self._config
        if config is None:
            return []
        suspects: list[Suspect] = []
        peer, directory = _peer(config), Path(config.directory)
        leftovers = [directory / str(peer), loading_progress_path(directory, peer)]
        if isinstance(config, WorkerConfig):
            box = Path(config.black_box)
            suspects = black_box.read(box)
            leftovers.append(box)
        for path in leftovers:
            with suppress(OSError):  # already removed, or the directory is read-only
                path.unlink()
        return suspects


def _peer(config: ChildConfig) -> Peer:
    return Peer(config.name, config.incarnation)


LocalProcessT = TypeVar("LocalProcessT", bound=LocalProcess)


class LocalStarter(Generic[LocalProcessT]):
    """Starts children of this process. They die with the thread that starts them."""

    def __init__(
        self,
        process_type: type[LocalProcessT],
        command: Sequence[str],
        on_exit: Callable[[LocalProcessT], None],
        variables: Mapping[str, Mapping[str, str]] | None = None,
        interpreters: Mapping[str, str] | None = None,
    ) -> None:
        """By worker: `variables` are environment variables of its processes, `interpreters` replace the first word of
        `command`."""
        self._process_type = process_type
        self._variables = variables or {}
        self._interpreters = interpreters or {}
        self._command = tuple(command)
        self._reaper: Reaper[LocalProcessT] = Reaper(on_exit)
        self._oom_kills = OomKills()

    def start(self, name: str) -> LocalProcessT:
        """Start a child without a configuration. Raises OSError."""
        worker, (interpreter, *arguments) = worker_of(name), self._command
        command = (self._interpreters.get(worker, interpreter), *arguments)
        process = self._process_type(command, self._oom_kills, self._variables.get(worker))
        self._reaper.add(process)
        return process

    def tick(self, now: float) -> None:  # noqa: ARG002 - ProcessStarter interface
        """Sample the counters of kills for lack of memory."""
        self._oom_kills.tick()

    def release(self, name: str) -> None:
        """Unused: no resources are reserved."""

    def close(self) -> None:
        """Stop the reaper."""
        self._reaper.close()
