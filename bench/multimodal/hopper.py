"""A real robot loop: pybullet's Hopper asks `mstar serve` what to do, fifty times a second, over openpi's WebSocket.

The simulator and openpi's own client are one process, in the venv that scripts/install-clients makes; the server is
another. Four hundred steps are eight seconds. Nothing is compared and nothing is removed or batched here: one robot
asks, a policy of ten thousand numbers answers, so that what is measured is the way there and back. A reply later than
20 ms, when the next one is due, is a miss; the robot's world waits for it. One step of that world is 16.5 ms.

Workload: the policy that comes with mstar, at its full size and at 50 Hz, the control rate of openpi's robots.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.claims import Row
from mstar.models.hopper.hopper import ACTION_RATE_HZ

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "hopper" / "bin" / "python"
MODEL = f"{ROOT / 'src' / 'mstar' / 'models' / 'hopper' / 'hopper.py'}:Hopper"
STEPS = 400


def hop(folder: Path, steps: int = STEPS, rate: float = ACTION_RATE_HZ) -> dict[str, Any]:
    """How one run went, as hop_openpi.py tells it; frames are left in the folder."""
    serve = [sys.executable, "-m", "mstar.cli", "serve", MODEL, "--port", "0", "--in-process"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as server:
        try:
            inputs = list(takewhile(lambda line: line != "ready\n", server.stdout or ()))
            address = urlsplit(inputs[0].split()[-1])
            where = [str(address.hostname), str(address.port), str(steps), str(rate), str(folder)]
            robot = [str(PYTHON), str(ROOT / "tests" / "clients" / "hop_openpi.py"), *where]
            done = subprocess.run(robot, capture_output=True, text=True, timeout=60, check=False)
        finally:
            server.terminate()
    if done.returncode:
        raise RuntimeError(f"the robot ended with {done.stderr[-2000:]}; the server said {inputs}")
    return json.loads((folder / "hop.json").read_text())


def rows() -> Sequence[Row]:
    """Milliseconds of replies, how many were late, and how well the robot hopped."""
    with tempfile.TemporaryDirectory() as folder:
        payload = hop(Path(folder))
    took_ms = [seconds * 1e3 for seconds in payload["took_s"]]
    return [
        Row("a reply, as the robot waits for it", "ms", took_ms),
        Row(
            f"  later than {1000 / ACTION_RATE_HZ:.0f} ms, of {len(took_ms)}",
            "misses",
            [sum(ms > 1000 / ACTION_RATE_HZ for ms in took_ms)],
        ),
        Row("steps until it fell, or the end", "steps", [len(took_ms)]),
        Row("return", "", [sum(payload["rewards"])]),
        Row("distance", "m", [payload["metres"]]),
    ]
