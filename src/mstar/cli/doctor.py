"""`mstar doctor`: check whether this machine can serve, with a fix for each problem found.

It changes nothing. Versions come from package metadata, so nothing heavy is imported without `--torch`.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mstar.errors import MstarError, format_names
from mstar.launch.gpus.assignment import unused_gpus, worker_devices, worker_ranks
from mstar.launch.gpus.visible import DRIVER_DIRECTORY, LIST_COMMAND, VARIABLE, count_gpus, visible_gpus
from mstar.nn.kernel_library import find_compiler
from mstar.nn.weights.file_checksum import compute_sha256
from mstar.plan.placement import read_placement

DISTRIBUTION = "mstar-serve"
OK = "ok"
WARN = "warn"
FAIL = "fail"
COLORS = {OK: 32, WARN: 33, FAIL: 31}
MIN_OPEN_FILES = 4096
"""Recommended limit of open files. Each client connection uses one."""
MIN_SHARED_MEMORY_BYTES = 4 << 30
MAX_SOCKET_PATH_CHARS = 100
"""Maximum length of a unix socket path, with a margin."""
DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check."""

    check: str
    state: str
    """`OK`, `WARN` or `FAIL`."""
    message: str
    fix: str = ""


def add_doctor(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Check whether this machine can serve, with a fix for each problem."
    doctor = commands.add_parser("doctor", help=text, description=text)
    doctor.add_argument("--json", action="store_true", help="Print JSON.")
    doctor.add_argument("--placement", default="", help="Placement file to check GPUs against (default: none is used).")
    doctor.add_argument("--torch", action="store_true", help="Import torch and report its threads and accelerator.")
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> None:
    checks = [*CHECKS, functools.partial(_gpus, options.placement)]
    checks += [_torch_runtime] if options.torch else []
    results = list[CheckResult]()
    for check in checks:
        for result in check():
            results.append(result)
            if not options.json:
                print(_format_result(result, sys.stdout.isatty()), flush=True)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    if failed := [result.check for result in results if result.state == FAIL]:
        raise MstarError(
            f"this machine cannot serve: {format_names(failed)} failed\n  fix: apply the fixes listed above"
        )


def _format_result(result: CheckResult, use_color: bool) -> str:
    width = shutil.get_terminal_size().columns if use_color else 1 << 16
    indent = " " * 22
    paragraphs = [result.message, f"fix: {result.fix}"] if result.fix else [result.message]
    text = "\n".join(textwrap.fill(one, width, initial_indent=indent, subsequent_indent=indent) for one in paragraphs)
    state = f"{result.state:<4}"
    if use_color:
        state = f"\x1b[{COLORS[result.state]}m{state}\x1b[0m"
    return f"{state}  {result.check:<14}  {text.lstrip()}"


# ---------------------------------------------------------------- hardware and operating system
def _python() -> Iterator[CheckResult]:
    yield CheckResult("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _cores() -> Iterator[CheckResult]:
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and (share := int(quota) / int(period)) < cores:
        fix = f"serve with --threads {max(int(share), 1)}, or raise the CPU limit of the cgroup"
        yield CheckResult("cores", WARN, f"{cores}, limited to {share:g} by the cgroup", fix)
    else:
        yield CheckResult("cores", OK, str(cores))


def _memory() -> Iterator[CheckResult]:
    fields = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines())
    free, total = (int(fields[name].split()[0]) << 10 for name in ("MemAvailable", "MemTotal"))
    limit = _read("/sys/fs/cgroup/memory.max")
    if limit.isdigit():
        total = min(total, int(limit))
        free = min(free, total - int(_read("/sys/fs/cgroup/memory.current") or 0))
    message = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    if free < MIN_SHARED_MEMORY_BYTES:
        yield CheckResult("memory", WARN, message, "stop other programs to free memory for models")
    else:
        yield CheckResult("memory", OK, message)


def _processor() -> Iterator[CheckResult]:
    lines = (line.partition(":") for line in _read("/proc/cpuinfo").splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    flags = fields.get("flags", fields.get("Features", "")).split()
    extensions = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX", "amx_bf16": "AMX bf16", "asimd": "NEON"}
    supported = [name for flag, name in extensions.items() if flag in flags]
    name = fields.get("model name", platform.machine())
    if supported:
        yield CheckResult("processor", OK, f"{name}: {', '.join(supported)}")
    else:
        yield CheckResult(
            "processor", WARN, f"{name}, without AVX2", "use a machine with AVX2 if inference is too slow"
        )


def _shared_memory() -> Iterator[CheckResult]:
    try:
        os.close(os.memfd_create("mstar-doctor"))
    except OSError as error:
        yield CheckResult("memfd", FAIL, f"shared memory cannot be created: {error.strerror}", "allow memfd_create(2)")
        return
    if os.access("/dev/shm", os.W_OK):
        yield CheckResult("memfd", OK, f"works; /dev/shm has {shutil.disk_usage('/dev/shm').free / 2**20:.0f} MiB")
    else:
        yield CheckResult(
            "memfd", WARN, "works, but /dev/shm is not writable", "mount a tmpfs at /dev/shm: libraries use it"
        )


def _files() -> Iterator[CheckResult]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < MIN_OPEN_FILES:
        fix = f"ulimit -n {MIN_OPEN_FILES if hard < 0 else min(hard, MIN_OPEN_FILES)}"
        yield CheckResult("open files", WARN, f"limit {soft}; each client uses one", fix)
    else:
        yield CheckResult("open files", OK, f"{soft}" if soft >= 0 else "unlimited")


def _compiler() -> Iterator[CheckResult]:
    compiler = find_compiler()
    if compiler:
        yield CheckResult("compiler", OK, f"{compiler} builds the fused kernels")
    else:
        yield CheckResult("compiler", WARN, "no g++: fused kernels are off, and steps are slower", "install g++")


def _port() -> Iterator[CheckResult]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError as error:
            fix = "stop the process that listens there, or serve with --port 0"
            yield CheckResult("port", WARN, f"{DEFAULT_PORT} is not free: {error.strerror}", fix)
        else:
            yield CheckResult("port", OK, f"{DEFAULT_PORT} is free")


def _run_directory() -> Iterator[CheckResult]:
    if find_spec("msgspec") is None:
        return  # the check of the extras reports that serving is impossible
    from mstar.config import runtime_directory

    root = runtime_directory()
    if not os.access(root, os.W_OK | os.X_OK):
        yield CheckResult("run folder", FAIL, f"{root} cannot be written", "set XDG_RUNTIME_DIR to a writable folder")
    elif len(str(root)) > MAX_SOCKET_PATH_CHARS - 40:
        fix = "set XDG_RUNTIME_DIR to a shorter path"
        yield CheckResult("run folder", FAIL, f"{root} is too long for the paths of unix sockets", fix)
    else:
        yield CheckResult("run folder", OK, str(root))


def _clock() -> Iterator[CheckResult]:
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < Path(__file__).stat().st_mtime:
        yield CheckResult("clock", WARN, f"{now} is before mstar was installed", "set the clock")
    else:
        yield CheckResult("clock", OK, f"{now}, resolution {time.get_clock_info('monotonic').resolution * 1e9:.0f} ns")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


# ---------------------------------------------------------------- installed packages
def _torch() -> Iterator[CheckResult]:
    version = _version("torch")
    if version is None:
        fix = "install the build of torch for this machine"
        yield CheckResult("torch", WARN, "not installed; neural networks need it", fix)
    else:
        yield CheckResult("torch", OK, f"{version}, {'CPU build' if version.endswith('+cpu') else 'accelerator build'}")


def _torch_runtime() -> Iterator[CheckResult]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield CheckResult("torch runtime", FAIL, f"torch cannot be imported: {error}", "reinstall torch")
        return
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "no accelerator"
    simd = torch.backends.cpu.get_cpu_capability()
    yield CheckResult("torch runtime", OK, f"{simd}, {torch.get_num_threads()} threads, {device}")


def _gpus(
    placement: str = "", directory: Path = DRIVER_DIRECTORY, command: Sequence[str] = LIST_COMMAND
) -> Iterator[CheckResult]:
    """The GPUs of this host, and whether the workers of a placement use them."""
    if find_spec("msgspec") is None:
        return  # the check of the extras reports that serving is impossible
    from mstar.config import read_env_variable

    installed, variable = count_gpus(directory, command), read_env_variable(VARIABLE)
    visible = visible_gpus(variable, installed) or ()
    if not installed:
        yield CheckResult("gpus", OK, "no NVIDIA GPU found")
        return
    if not visible:
        yield CheckResult("gpus", OK, f"{installed}, of which none is visible ({VARIABLE}={variable})")
        return
    version = _version("torch") or ""
    if version.endswith("+cpu"):
        fix = "install the build of torch for CUDA"
        yield CheckResult("gpus", WARN, f"{len(visible)} visible, but torch {version} is a CPU build", fix)
    placements = [read_placement(Path(placement))] if placement else []
    devices, ranks = worker_devices(placements), worker_ranks(placements)
    if unused := unused_gpus(devices, visible, ranks):
        message, fix = unused
        note = "" if placement else " (no placement: pass --placement FILE)"
        yield CheckResult("gpus", WARN, message + note, fix)
    else:
        yield CheckResult("gpus", OK, f"{len(visible)} visible, all used by workers")


def _extras() -> Iterator[CheckResult]:
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        fix = f"pip install {DISTRIBUTION}, or pip install -e . in the source folder"
        yield CheckResult("mstar", WARN, "runs from a source folder, not installed", fix)
        return
    yield CheckResult("mstar", OK, distribution.version)
    parsed = map(_parse_requirement, distribution.requires or ())
    requirements = [requirement for requirement in parsed if requirement is not None]
    for extra in dict.fromkeys(extra for _, _, extra in requirements if extra != "dev"):
        packages = [(name, spec, _version(name)) for name, spec, of in requirements if of == extra]
        message = ", ".join(f"{name} {version or 'missing'}" for name, _, version in packages)
        if all(version is not None and _satisfies(version, spec) for _, spec, version in packages):
            yield CheckResult(f"[{extra}]", OK, message)
        else:
            yield CheckResult(f"[{extra}]", WARN, message, f"pip install '{DISTRIBUTION}[{extra}]'")


def _parse_requirement(text: str) -> tuple[str, str, str] | None:
    """Name, version specifier and extra of an extra's requirement. None for any other requirement."""
    match = re.fullmatch(r"([\w.-]+)([<>=,.\w]*) *; *extra == ['\"](\w+)['\"]", text)
    return (match[1], match[2], match[3]) if match else None


def _satisfies(version: str, spec: str) -> bool:
    """Whether a version satisfies a specifier such as `>=1.2,<2`."""
    installed = _version_parts(version)
    bounds = re.findall(r"(>=|<)([\d.]+)", spec)
    return all(
        installed >= _version_parts(bound) if sign == ">=" else installed < _version_parts(bound)
        for sign, bound in bounds
    )


def _version_parts(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _codecs() -> Iterator[CheckResult]:
    installed = {name: find_spec(name) is not None for name in ("soundfile", "PIL", "av")}
    reads = ["wav, flac, mp3, opus, vorbis"] if installed["soundfile"] else []
    reads += ["png, jpeg, webp, gif"] if installed["PIL"] else []
    writes = ["wav, pcm", "mp3, opus, aac, flac, mp4"] if installed["av"] else ["wav, pcm"]
    message = f"reads {', '.join(reads) or 'nothing'}; writes {', '.join(writes)}"
    if all(installed.values()):
        yield CheckResult("codecs", OK, message)
    else:
        missing = "media" if installed["soundfile"] and installed["PIL"] else "serve"
        yield CheckResult("codecs", WARN, message, f"pip install '{DISTRIBUTION}[{missing}]'")


def _weights() -> Iterator[CheckResult]:
    from mstar.cli.models import default_weights_state
    from mstar.walk.load import ENTRY_POINT_GROUP, load_model

    size = functools.cache(
        lambda file: file.path(compute_sha256).stat().st_size
    )  # models share files, and path() verifies a checksum
    for name in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP).names):
        try:
            model = load_model(name)
            components = model.components().values()
            files = {file for component in components for file in component.weights}
            total = sum(size(file) for file in files)
        except MstarError as error:
            problem, _, fix = str(error).partition("\n  fix: ")
            yield CheckResult("weights", WARN, f"{name}: {problem}", fix)
        else:
            state, fix = default_weights_state(name, model)
            message = state or (f"{total / 1e6:.0f} MB, checksums verified" if files else "no weights declared")
            yield CheckResult("weights", WARN if fix else OK, f"{name}: {message}", fix)


CHECKS: tuple[Callable[[], Iterator[CheckResult]], ...] = (
    *(_python, _torch, _extras, _codecs, _weights),
    *(_cores, _processor, _memory, _shared_memory, _files, _compiler, _run_directory, _port, _clock),
)
