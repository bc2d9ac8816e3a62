"""Section `server`: `mstar serve` with SmolLM2 on the device, measured by `mstar bench serve`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from mstar.cli.gpu_report.engine import MODEL
from mstar.cli.gpu_report.records import Row
from mstar.cli.gpu_report.sections import SectionOptions
from mstar.errors import format_count

CONCURRENCY = (1, 8, 32)
SECONDS = 10
START_TIMEOUT_S = 600.0


def rows(options: SectionOptions) -> Iterator[Row]:
    """Measure the server at each number of clients."""
    concurrency, seconds = ((4,), 4) if options.is_rehearsal else (CONCURRENCY, SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        placement, results = Path(folder, "placement.toml"), Path(folder, "load.json")
        placement.write_text(f'[workers.local]\ndevice = "{options.device}"\n')
        with _serve(placement) as url:
            command = [sys.executable, "-m", "mstar.cli", "bench", "serve", url, "--model", MODEL, "--mix", "chat"]
            command += [
                "--concurrency",
                ",".join(map(str, concurrency)),
                "--seconds",
                str(seconds),
                "--json",
                str(results),
            ]
            subprocess.run(command, check=True)
        levels = json.loads(results.read_bytes())["levels"]
    for clients, level in zip(concurrency, levels, strict=True):
        records = [record for record in level["records"] if not record["error"]]
        tokens = sum(record["tokens"] for record in records)
        elapsed_s = max((record["ended_at"] for record in records), default=0.0) or seconds  # the last ones end later
        first = sorted(record["chunks"][0][0] - record["sent_at"] for record in records if record["chunks"])
        what, note = format_count(clients, "client"), format_count(len(records), "request")
        yield Row(what=what, value=tokens / elapsed_s, unit="tokens/s", note=note)
        if first:
            yield Row(what=f"{what}, first token", value=1000 * first[len(first) // 2], unit="ms, median")


@contextmanager
def _serve(placement: Path) -> Iterator[str]:
    """A server on a free port, ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mstar.cli", "serve", MODEL, "--placement", str(placement), "--port", str(port)]
    process = subprocess.Popen(command)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_TIMEOUT_S
    try:
        while not _is_ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not start; its log is above")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/ready", timeout=2) as response:
            return response.status == 200
    except (URLError, OSError):
        return False
