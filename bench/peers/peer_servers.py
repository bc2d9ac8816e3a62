"""The servers of the race: which there are, what each needs, and how one is started, found ready and ended.

Each is a process group of its own, with one thread in each process that computes. What it is asked is not told here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).parents[2]
START_S, END_S, POLL_S = 120.0, 15.0, 0.2
PR_SET_PDEATHSIG = 1
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ServerStartError(RuntimeError):
    """A server ended or did not answer in time."""


@dataclass(frozen=True)
class Peer:
    """A model server: its name, its venv and the packages in it, and what that venv's Python is told."""

    title: str
    venv: str
    needs: tuple[str, ...]
    command: tuple[str, ...]
    path: str = "/"
    batches: bool = True
    start_s: float = START_S
    protocol: str = "json"
    """"triton" for a server whose requests and responses are tensors of Triton's protocol."""
    uses_system_python: bool = False
    """Whether its venv is made with the system's interpreter instead of the running one."""


def _module(name: str) -> str:
    return f"bench.peers.servers.{name}"


_FASTAPI = ("fastapi", ("fastapi==0.162.4", "uvicorn==0.54.0", "numpy>=2"))
_BENTO = (
    "-m",
    "bentoml",
    "serve",
    f"{_module('bentoml_server')}:SpeechService",
    "--host",
    "127.0.0.1",
    "--port",
    "{port}",
)
PEERS = (
    Peer("FastAPI, a lock", *_FASTAPI, ("-m", _module("fastapi_lock"), "{port}"), batches=False),
    Peer("FastAPI, a queue", *_FASTAPI, ("-m", _module("fastapi_queue"), "{port}")),
    Peer(
        "Mosec",
        "mosec",
        ("mosec==0.9.8", "numpy>=2"),
        ("-m", _module("mosec_server"), "--address", "127.0.0.1", "--port", "{port}", "--timeout", "120000"),
        "/inference",
    ),
    Peer(
        "LitServe",
        "litserve",
        ("litserve==0.2.19", "numpy>=2"),
        ("-m", _module("litserve_server"), "{port}"),
        "/predict",
    ),
    Peer("BentoML", "bentoml", ("bentoml==1.4.39", "numpy>=2"), _BENTO, "/speak"),
    Peer(
        "PyTriton",
        "pytriton",
        ("nvidia-pytriton==0.7.0",),
        ("-m", _module("pytriton_server"), "{port}"),
        "/v2/models/speech/infer",
        protocol="triton",
        # Its server embeds an early release of each minor version of Python, which fails with the library of a later
        # one: 3.11.7 does not work, the 3.11.2 of Debian 12 does.
        uses_system_python=True,
    ),
    Peer("Ray Serve", "ray", ("ray[serve]==2.60.0", "numpy>=2"), ("-m", _module("ray_server"), "{port}")),
)


def mstar_peer(title: str, model: str, path: str, threads: int) -> Peer:
    """`mstar serve` with a model of this folder, which it calls `model`."""
    flags = {"--name": "model", "--port": "{port}", "--threads": str(threads)}
    command = ("-m", "mstar.cli", "serve", str(Path(__file__).parent / f"{model}.py"), *chain(*flags.items()))
    return Peer(title, "", (), command, path)


class RunningServer(NamedTuple):
    """Where a server listens, and its first process."""

    port: int
    pid: int


@contextmanager
def run_server(
    peer: Peer, python: Path, probe: bytes, own: Mapping[str, str] | None = None
) -> Generator[RunningServer]:
    """A server that has answered `probe`, with one thread or an environment of its own.

    It ends with the block. Raises ServerStartError.
    """
    port = _free_port()
    command = [str(python), *(word.replace("{port}", str(port)) for word in peer.command)]
    environment = own or {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT), "PATH": f"{python.parent}:{os.defpath}"}
    with tempfile.TemporaryFile("w+") as log:
        how: dict[str, Any] = {"env": environment, "cwd": ROOT, "process_group": 0, "preexec_fn": _end_with_bench}
        process = subprocess.Popen(command, stdout=log, stderr=log, **how)
        try:
            _await_answer(peer, process, f"http://127.0.0.1:{port}{peer.path}", probe, log)
            yield RunningServer(port, process.pid)
        finally:
            _end(process)


def _end_with_bench() -> None:
    """In a server's process: it is to be told to end when the bench is killed, which then ends nothing itself."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as results:
        return results.getsockname()[1]


def _await_answer(peer: Peer, process: subprocess.Popen[bytes], url: str, probe: bytes, log: IO[str]) -> None:
    request = urllib.request.Request(url, probe, {"Content-Type": "application/json"})
    until = time.monotonic() + peer.start_s
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):  # it does not listen yet, or listens and is not ready
            urllib.request.urlopen(request, timeout=peer.start_s).close()
            return
        time.sleep(POLL_S)
    log.seek(0)
    inputs = "\n    ".join(log.read().splitlines()[-15:])
    what = "did not answer" if process.poll() is None else f"ended with status {process.poll()}"
    raise ServerStartError(f"{peer.title} {what}. The last it said:\n    {inputs}\n  fix: what its message asks for")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end; kill what is left of its group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
