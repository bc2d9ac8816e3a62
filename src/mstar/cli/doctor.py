"""`mstar doctor`: is this machine fit to serve, and what to do where it is not.

It looks and changes nothing. What is installed is read from the packages' own records, so that nothing heavy is
imported unless `--torch` asks for it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import re
import resource
import shutil
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mstar.errors import MstarError, format_names

DISTRIBUTION = "mstar-serve"
OK, WARN, FAIL = "ok", "warn", "fail"
COLOURS = {OK: 32, WARN: 33, FAIL: 31}
MIN_OPEN_FILES = 4096
"""How many files a server should be able to have open: each client is one."""
MIN_SHARED_MEMORY_BYTES = 4 << 30
MAX_SOCKET_PATH_CHARS = 100
"""How long the path of a socket may be, with some room."""
DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at."""

    check: str
    state: str
    """ok, warn or fail."""
    message: str
    fix: str = ""


def add_doctor(commands: Any) -> None:
    """Add the command to a parser."""
    text = "say whether this machine is fit to serve, and what to do where it is not"
    doctor = commands.add_parser("doctor", help=text, description=text)
    doctor.add_argument("--json", action="store_true", help="print it as JSON")
    doctor.add_argument("--torch", action="store_true", help="import torch, and tell what it finds")
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> None:
    checks = [*CHECKS, _torch_inside] if options.torch else CHECKS
    found = list[CheckResult]()
    for check in checks:
        for finding in check():
            found.append(finding)
            if not options.json:
                print(_format_result(finding, sys.stdout.isatty()), flush=True)
    if options.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    if failed := [finding.check for finding in found if finding.state == FAIL]:
        raise MstarError(f"it cannot serve here, because of {format_names(failed)}\n  fix: do what is said there")


def _format_result(finding: CheckResult, has_colours: bool) -> str:
    width = shutil.get_terminal_size().columns if has_colours else 1 << 16
    indent = " " * 22
    said = [finding.message, f"fix: {finding.fix}"] if finding.fix else [finding.message]
    text = "\n".join(textwrap.fill(one, width, initial_indent=indent, subsequent_indent=indent) for one in said)
    state = f"{finding.state:<4}"
    if has_colours:
        state = f"\x1b[{COLOURS[finding.state]}m{state}\x1b[0m"
    return f"{state}  {finding.check:<14}  {text.lstrip()}"


# ---------------------------------------------------------------- the machine
def _python() -> Iterator[CheckResult]:
    yield CheckResult("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _cores() -> Iterator[CheckResult]:
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and (share := int(quota) / int(period)) < cores:
        fix = f"start it with --threads {max(int(share), 1)}, or allow it more"
        yield CheckResult("cores", WARN, f"{cores}, of which it may use {share:g} at a time", fix)
    else:
        yield CheckResult("cores", OK, str(cores))


def _memory() -> Iterator[CheckResult]:
    known = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines())
    free, total = (int(known[name].split()[0]) << 10 for name in ("MemAvailable", "MemTotal"))
    bound = _read("/sys/fs/cgroup/memory.max")
    if bound.isdigit():
        total = min(total, int(bound))
        free = min(free, total - int(_read("/sys/fs/cgroup/memory.current") or 0))
    said = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    if free < MIN_SHARED_MEMORY_BYTES:
        yield CheckResult("memory", WARN, said, "end other programs: models need it")
    else:
        yield CheckResult("memory", OK, said)


def _processor() -> Iterator[CheckResult]:
    lines = (line.partition(":") for line in _read("/proc/cpuinfo").splitlines())
    told = {name.strip(): value.strip() for name, _, value in lines}
    flags = told.get("flags", told.get("Features", "")).split()
    kinds = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX", "amx_bf16": "AMX bf16", "asimd": "NEON"}
    has = [name for flag, name in kinds.items() if flag in flags]
    name = told.get("model name", platform.machine())
    if has:
        yield CheckResult("processor", OK, f"{name}: {', '.join(has)}")
    else:
        yield CheckResult("processor", WARN, f"{name}, without AVX2", "use another machine if it is too slow")


def _shared_memory() -> Iterator[CheckResult]:
    try:
        os.close(os.memfd_create("mstar-doctor"))
    except OSError as error:
        yield CheckResult("memfd", FAIL, f"shared memory cannot be made: {error.strerror}", "allow memfd_create(2)")
        return
    if os.access("/dev/shm", os.W_OK):
        yield CheckResult("memfd", OK, f"works; /dev/shm has {shutil.disk_usage('/dev/shm').free / 2**20:.0f} MiB")
    else:
        yield CheckResult("memfd", WARN, "works, but /dev/shm is not there", "mount a tmpfs there: libraries use it")


def _files() -> Iterator[CheckResult]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < MIN_OPEN_FILES:
        may = f"ulimit -n {MIN_OPEN_FILES if hard < 0 else min(hard, MIN_OPEN_FILES)}"
        yield CheckResult("open files", WARN, f"{soft}, and each client is one", may)
    else:
        yield CheckResult("open files", OK, f"{soft}" if soft >= 0 else "any number")


def _compiler() -> Iterator[CheckResult]:
    found = shutil.which("g++") or shutil.which("c++")
    if found:
        yield CheckResult("compiler", OK, f"{found} builds the fused kernels")
    else:
        yield CheckResult("compiler", WARN, "no g++, so steps are slower", "install g++")


def _port() -> Iterator[CheckResult]:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError as error:
            fix = "end who listens there, or serve with --port 0"
            yield CheckResult("port", WARN, f"{DEFAULT_PORT} is not free: {error.strerror}", fix)
        else:
            yield CheckResult("port", OK, f"{DEFAULT_PORT} is free")


def _run_directory() -> Iterator[CheckResult]:
    if find_spec("msgspec") is None:
        return  # nothing can be served, which is said elsewhere
    from mstar.config import runtime_directory

    root = runtime_directory()
    if not os.access(root, os.W_OK | os.X_OK):
        yield CheckResult("run folder", FAIL, f"{root} cannot be written", "set XDG_RUNTIME_DIR to a folder of yours")
    elif len(str(root)) > MAX_SOCKET_PATH_CHARS - 40:
        fix = "set XDG_RUNTIME_DIR to a shorter one: sockets lie in it"
        yield CheckResult("run folder", FAIL, f"{root} is too long a path", fix)
    else:
        yield CheckResult("run folder", OK, str(root))


def _clock() -> Iterator[CheckResult]:
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < Path(__file__).stat().st_mtime:
        yield CheckResult("clock", WARN, f"{now} is before this program was installed", "set the clock")
    else:
        yield CheckResult("clock", OK, f"{now}, steps of {time.get_clock_info('monotonic').resolution * 1e9:.0f} ns")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


# ---------------------------------------------------------------- what is installed
def _torch() -> Iterator[CheckResult]:
    version = _version("torch")
    if version is None:
        fix = "install the build of torch that suits this machine"
        yield CheckResult("torch", WARN, "not installed, and networks need it", fix)
    else:
        yield CheckResult("torch", OK, f"{version}, {'for CPUs' if version.endswith('+cpu') else 'for accelerators'}")


def _torch_inside() -> Iterator[CheckResult]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield CheckResult("torch inside", FAIL, f"it cannot be imported: {error}", "install it again")
        return
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "no accelerator"
    simd = torch.backends.cpu.get_cpu_capability()
    yield CheckResult("torch inside", OK, f"{simd}, {torch.get_num_threads()} threads, {device}")


def _extras() -> Iterator[CheckResult]:
    try:
        about = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        fix = f"pip install {DISTRIBUTION}, or -e . in its folder"
        yield CheckResult("mstar", WARN, "it runs from a folder, and is not installed", fix)
        return
    yield CheckResult("mstar", OK, about.version)
    wanted = [one for one in map(_parse_requirement, about.requires or ()) if one is not None]
    for extra in dict.fromkeys(extra for _, _, extra in wanted if extra != "dev"):
        parts = [(name, spec, _version(name)) for name, spec, of in wanted if of == extra]
        said = ", ".join(f"{name} {version or 'missing'}" for name, _, version in parts)
        if all(version is not None and _satisfies(version, spec) for _, spec, version in parts):
            yield CheckResult(f"[{extra}]", OK, said)
        else:
            yield CheckResult(f"[{extra}]", WARN, said, f"pip install '{DISTRIBUTION}[{extra}]'")


def _parse_requirement(text: str) -> tuple[str, str, str] | None:
    """Name, versions and extra of a requirement of an extra; None for one of another form."""
    found = re.fullmatch(r"([\w.-]+)([<>=,.\w]*) *; *extra == ['\"](\w+)['\"]", text)
    return (found[1], found[2], found[3]) if found else None


def _satisfies(version: str, spec: str) -> bool:
    """Whether a version is within bounds such as `>=1.2,<2`."""
    have = _version_parts(version)
    bounds = re.findall(r"(>=|<)([\d.]+)", spec)
    return all(
        have >= _version_parts(bound) if sign == ">=" else have < _version_parts(bound) for sign, bound in bounds
    )


def _version_parts(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _codecs() -> Iterator[CheckResult]:
    has = {name: find_spec(name) is not None for name in ("soundfile", "PIL", "av")}
    reads = ["wav, flac, mp3, opus, vorbis"] * has["soundfile"] + ["png, jpeg, webp, gif"] * has["PIL"]
    writes = ["wav, pcm"] + ["mp3, opus, aac, flac, mp4"] * has["av"]
    said = f"reads {', '.join(reads) or 'nothing'}; writes {', '.join(writes)}"
    if all(has.values()):
        yield CheckResult("codecs", OK, said)
    else:
        missing = "media" if has["soundfile"] and has["PIL"] else "serve"
        yield CheckResult("codecs", WARN, said, f"pip install '{DISTRIBUTION}[{missing}]'")


def _weights() -> Iterator[CheckResult]:
    from mstar.walk.load import ENTRY_POINT_GROUP, load_model

    size = functools.cache(lambda file: file.path().stat().st_size)  # models share files, and a hash takes a while
    for name in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP).names):
        try:
            components = load_model(name).components().values()
            files = {file for component in components for file in component.weights}
            total = sum(size(file) for file in files)
        except MstarError as error:
            what, _, fix = str(error).partition("\n  fix: ")
            yield CheckResult("weights", WARN, f"{name}: {what}", fix)
        else:
            has = f"{total / 1e6:.0f} MB, hashes as they should be" if files else "it names none"
            yield CheckResult("weights", OK, f"{name}: {has}")


CHECKS: tuple[Callable[[], Iterator[CheckResult]], ...] = (
    *(_python, _torch, _extras, _codecs, _weights),
    *(_cores, _processor, _memory, _shared_memory, _files, _compiler, _run_directory, _port, _clock),
)
