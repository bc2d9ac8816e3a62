"""Flame graphs of the processes of a server while it streams: one SVG for each role, recorded by py-spy.

    python -m bench.cost.flame docs/pictures/cost

A bar is as wide as the share of CPU samples in which its function was on the stack. The figures of a flame graph are
shares, not costs: `python -m bench cost` measures these.

Workload: that of the first line of `bench cost`, 64 streams of 20 tokens/s of a toy model that computes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
from pathlib import Path

from bench.cost.ledger import PERIOD_S, STREAMS
from bench.cost.usage import ROLES
from bench.http.client import Client, ask, model_file, serve

SECONDS = 10
SAMPLES_PER_S = 200
_TITLE = re.compile(r'(<text id="title"[^>]*>)[^<]*(</text>)')


def find_processes(pid: int) -> dict[str, int]:
    """Process ids of a server with one worker, by role."""
    pids = {"front end": pid}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, task.joinpath("children").read_text().split()):
            name = Path(f"/proc/{child}/comm").read_text().strip()
            pids |= {role: child for role in ROLES if name.startswith(role)}
    return pids


async def _record(port: int, pid: int, directory: Path) -> None:
    words = round(2 * SECONDS / PERIOD_S)
    clients: list[Client] = [await ask(port, f"{words} {PERIOD_S}") for _ in range(STREAMS)]
    while not all(client.deltas for client in clients):
        await asyncio.sleep(0.01)
    running: dict[Path, asyncio.subprocess.Process] = {}
    for role, process in find_processes(pid).items():
        output = directory / f"{role.replace(' ', '-')}.svg"
        options = ("--duration", str(SECONDS), "--rate", str(SAMPLES_PER_S), "--nonblocking", "--output", str(output))
        command = (_find_py_spy(), "record", "--pid", str(process), *options)
        running[output] = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    for output, recorder in running.items():
        if await recorder.wait():
            raise RuntimeError(f"py-spy returned status {recorder.returncode}\n  fix: allow ptrace (SYS_PTRACE)")
        title = f"mstar {output.stem.replace('-', ' ')}: {STREAMS} streams of {1 / PERIOD_S:g} tokens/s"
        output.write_text(_TITLE.sub(rf"\g<1>{title}\g<2>", output.read_text("utf-8")), "utf-8")
    for client in clients:
        client.transport.abort()


def _find_py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    path = str(beside) if beside.exists() else shutil.which("py-spy")
    if path is None:
        raise RuntimeError("py-spy is not installed\n  fix: pip install py-spy")
    return path


def main() -> None:
    """Record the flame graphs."""
    parser = argparse.ArgumentParser(description="Record flame graphs of a server with py-spy.")
    parser.add_argument("directory", type=Path, help="Folder for one SVG file for each role.")
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    with serve(model_file("timestamps")) as (port, pid):
        asyncio.run(_record(port, pid, directory))


if __name__ == "__main__":
    main()
