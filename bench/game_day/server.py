"""The server of a game day: `mstar serve mstar.toml` in a folder of its own, and its processes as the kernel sees them.

Its run directory is a small tmpfs in a mount namespace of its own, if the kernel allows that: it can be filled, and
nothing stays mounted after the server. Processes are identified by the Unix sockets that they listen on, so that no
part of the server has to cooperate.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.game_day.observations import ProcessSample
from bench.models import game_day as toy_models
from bench.repository import ROOT
from mstar.wire.message import worker_of

TENANTS = ("alice", "bob", "mallory", "operator")
RUN_BYTES = 8 << 20
"""Size of the file system of the run directory."""
LIMITS = ("max_running_requests = 160", "max_queued_requests = 64")
"""Lower than the defaults, so that one key can reach them with a few hundred streams."""
REAL_MODELS = {
    "chat": ("smollm2", {"lm": "lm"}),
    "voice": ("hibari", {"tts": "tts"}),
    "asr": ("whisper", {"asr": "asr", "merger": "asr"}),
}
"""Models with published weights: their name in the manifest, the installed model, and their workers."""
WORKERS = {"toy": ("t1",), "pair": ("p1", "p2"), "chat": ("lm",), "voice": ("tts",), "asr": ("asr",)}
"""Worker processes by model."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class StartFailed(RuntimeError):
    """The server did not become ready."""


class Server:
    """A running server. `folder` must exist; all files of the server are in it."""

    def __init__(self, folder: Path, real_models: Sequence[str], request_timeout_s: float) -> None:
        self.folder = folder
        self.keys = {tenant: secrets.token_hex(16) for tenant in TENANTS}
        self.weights = folder / "toy.weights"
        self.weights.write_bytes(toy_models.weights_text())
        self.run_directory, self._temporary = folder / "run", folder / "tmp"
        self.run_directory.mkdir(mode=0o700)
        self._temporary.mkdir()
        manifest = folder / "mstar.toml"
        manifest.write_text(self._manifest(real_models, request_timeout_s))
        self.has_small_disk = can_mount()
        self.log_path = folder / "server.log"
        self._log = self.log_path.open("wb")
        command = [sys.executable, "-m", "mstar.cli", "serve", str(manifest)]
        if self.has_small_disk:
            mount = f"mount -t tmpfs -o size={RUN_BYTES},mode=700 tmpfs {self.run_directory}"
            command = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **self._environment()},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.pid = self._process.pid
        self.port = 0
        self.rollout_starts: list[float] = []
        self.rollout_ends: list[float] = []
        self.seen: dict[int, str] = {}
        """Every process of the server so far, by number."""

    def _environment(self) -> dict[str, str]:
        """Folders of this run. The cache of torch is kept on purpose, so it is not among the temporary files."""
        return {
            "XDG_RUNTIME_DIR": str(self.run_directory),
            "TMPDIR": str(self._temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "torch-cache"),
        }

    def _manifest(self, real_models: Sequence[str], request_timeout_s: float) -> str:
        path = Path(toy_models.__file__)
        lines = ["[server]", "port = 0", "drain_timeout_s = 20.0"]
        lines += ["[limits]", "threads = 1", f"request_timeout_s = {request_timeout_s}", *LIMITS]
        for tenant, key in self.keys.items():
            (self.folder / f"{tenant}.key").write_text(key)
            (self.folder / f"{tenant}.key").chmod(0o600)
            lines += ["[[api_keys.tenant]]", f'name = "{tenant}"', f'file = "{tenant}.key"']
        models: dict[str, tuple[str, Mapping[str, str]]] = {
            "toy": (f"{path}:Toy@{self.weights}", {"steps": "t1"}),
            "pair": (f"{path}:Pair", {"source": "p1", "sink": "p2"}),
            "noop": (str(ROOT / "examples" / "noop.py"), {"part": "p2"}),
        }
        for name, (model, place) in {**models, **{name: REAL_MODELS[name] for name in real_models}}.items():
            lines += [f"[models.{name}]", f'model = "{model}"', f"[models.{name}.place]"]
            lines += [f'{component} = "{worker}"' for component, worker in place.items()]
        return "\n".join(lines) + "\n"

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until it is ready. Raises StartFailed."""
        watchdog = threading.Timer(timeout_s, self._process.kill)
        watchdog.start()
        try:
            for line in self._process.stdout or ():
                if match := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                    self.port = int(match[1])
                if line.startswith("ready"):
                    break
            else:
                raise StartFailed(f"the server was not ready after {timeout_s:.0f} s:\n{self.log_tail()}")
        finally:
            watchdog.cancel()
        threading.Thread(target=self._watch_output, daemon=True).start()

    def _watch_output(self) -> None:
        """Record when rolling updates start and end."""
        for line in self._process.stdout or ():
            if line.startswith("replacing workers"):
                self.rollout_starts.append(time.monotonic())
            elif line.startswith("all workers replaced"):
                self.rollout_ends.append(time.monotonic())

    def rollouts(self, origin: float) -> list[tuple[float, float]]:
        """Start and end of each rolling update, in seconds since `origin`. One that runs has no end."""
        ends = [*self.rollout_ends, *[float("inf")] * len(self.rollout_starts)]
        return [(start - origin, end - origin) for start, end in zip(self.rollout_starts, ends, strict=False)]

    def log_tail(self, count: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(self.log_path.read_text("utf-8", "replace").splitlines()[-count:])

    # ---------------------------------------------------------------- processes
    def processes(self) -> dict[str, int]:
        """Process numbers by name: `front`, `conductor`, workers, and `standby` for one without a role."""
        names = _listener_names(self.run_directory)
        result = {"front": self.pid}
        for pid in _children(self.pid):
            name = next((names[inode] for inode in _socket_inodes(pid) if inode in names), "standby")
            result[name] = pid
            self.seen[pid] = name
        for name in [name for name in result if worker_of(name) not in result]:  # its predecessor has stopped
            result[worker_of(name)] = result.pop(name)
        return result

    def sample(self, at: float) -> ProcessSample:
        """Process numbers and resident memory, with the children of children counted as `others`."""
        pids = self.processes()
        memory = {name: _resident_mb(pid) for name, pid in pids.items()}
        grandchildren = [child for pid in pids.values() if pid != self.pid for child in _children(pid)]
        memory["others"] = sum(map(_resident_mb, grandchildren))
        return ProcessSample(at, pids, memory)

    def tree(self) -> list[int]:
        """All its processes, the server first."""
        result = [self.pid]
        for pid in result:
            result += _children(pid)
        return result

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server itself."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit status, or None if it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def left_processes(self, timeout_s: float = 2.0) -> list[str]:
        """Its processes that still exist a moment after its end."""
        deadline = time.monotonic() + timeout_s
        while (left := [name for pid, name in self.seen.items() if _is_own(pid, self.folder)]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.05)
        return left

    def close(self) -> None:
        """Kill what is left."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        self._log.close()

    # ---------------------------------------------------------------- files
    def open_run_directory(self) -> int:
        """A descriptor of the run directory as the server sees it; it keeps a file system that nothing else uses."""
        return os.open(f"/proc/{self.pid}/root{self.run_directory}", os.O_RDONLY | os.O_DIRECTORY)

    def left_files(self, run_directory: int) -> list[str]:
        """Names of files that it left in its run directory and its folder for temporary files."""
        return sorted([*os.listdir(run_directory), *os.listdir(self._temporary)])


def can_mount() -> bool:
    """Whether this process can mount a file system in a namespace of its own."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    """Children of all threads of a process."""
    result: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            result += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return result


def _listener_names(directory: Path) -> dict[str, str]:
    """Names of the processes that listen below a directory, by inode of their socket."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    fields = [line.split(None, 7) for line in lines]
    return {
        row[6]: Path(row[7]).name.rpartition(".")[0]
        for row in fields
        if len(row) == 8 and row[7].startswith(f"{directory}/")
    }


def _socket_inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if link.startswith("socket:["):
                    yield link[8:-1]


def _resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6
    except (OSError, IndexError):
        return 0.0


def _is_own(pid: int, folder: Path) -> bool:
    """Whether a process still exists and has the environment of this server: numbers are used again."""
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
