"""The library of the native kernels: compiled from `native/kernels.cpp` once per machine, and kept in a cache.

Imports no torch, so that the compiler can run while torch is imported.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from mstar.nn.cache_directory import cache_directory

_SOURCE = Path(__file__).parent / "native" / "kernels.cpp"
_SOURCE_FILES = ("kernels.cpp", "linear.h", "attention.h", "layers.h", "dense.h", "blocks.h", "int8.h", "low_rank.h")
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-w"),
    # -ffast-math without its linker part, which would change the rounding mode of the whole process.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fassociative-math", "-freciprocal-math", "-ffinite-math-only"),
)
_VECTOR_FLAGS = ("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()
"""Use full-width vectors; by default g++ uses half the width."""
_ELEMENTS = ("bf16", "float")
"""C++ types of the tensor elements for which the kernels are compiled."""

_SCRATCH_PREFIX = "compiling-"
"""Prefix of the directory in which a process compiles the library."""

log = logging.getLogger("mstar.nn")


def find_compiler() -> str | None:
    """Path of the C++ compiler, if there is one."""
    return shutil.which("g++") or shutil.which("c++")


def start_compiling() -> None:
    """Compile the library in the background if the cache does not have it. A caller that needs it waits for it."""
    compiler = find_compiler()
    if compiler is None:
        return

    def run() -> None:
        with suppress(OSError, RuntimeError, subprocess.CalledProcessError):  # `native` tries again and reports it
            path = cache_directory() / library_name(compiler)
            if not path.exists():
                compile_library(compiler, path)

    threading.Thread(target=run, name="compiler", daemon=True).start()


def library_name(compiler: str) -> str:
    """File name of the library: a hash of the sources, the flags, the compiler and the CPU features."""
    cpu_info = Path("/proc/cpuinfo").read_text().splitlines()
    features = [line for line in cpu_info if line.startswith(("flags", "Features", "model name"))]
    sources = [_SOURCE.with_name(name).read_text() for name in _SOURCE_FILES]
    parts = (*sources, *_FLAGS, *_VECTOR_FLAGS, compiler, platform.machine(), *features[:2])
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()
    return f"kernels-{digest}.so"


def compile_library(compiler: str, path: Path) -> None:
    """Compile the kernels, for both dtypes in parallel. If another process compiles them, wait for its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        if path.exists():
            return
        for stale in path.parent.glob(f"{_SCRATCH_PREFIX}*"):  # its process ended: it would have the lock
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=path.parent) as scratch:
            _compile(compiler, path, Path(scratch))


def _compile(compiler: str, path: Path, scratch: Path) -> None:
    """Compile the kernels with intermediate files in `scratch`."""
    log.info("compiling the native kernels for this CPU, once: about 10 s")

    def run(*arguments: str | Path) -> None:
        command = [compiler, *_FLAGS, *_VECTOR_FLAGS, *arguments]
        subprocess.run(command, capture_output=True, text=True, check=True)

    objects = {element: scratch / f"{element}.o" for element in _ELEMENTS}
    with ThreadPoolExecutor() as pool:
        builds = [
            pool.submit(run, "-c", f"-DELEMENT={element}", "-o", output, _SOURCE) for element, output in objects.items()
        ]
        for build in builds:
            build.result()
    library = scratch / path.name
    run("-shared", "-o", library, *objects.values())
    library.replace(path)  # atomic, so that no other process loads an incomplete file


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Wait until no other process has the directory locked, and lock it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def private_temporary_directory() -> Path:
    """Directory for temporary files that only this user can write: its content is loaded as code."""
    path = Path(tempfile.gettempdir()) / f"mstar-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} is not a private directory of this user")
    return path
