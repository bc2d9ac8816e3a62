"""Section `ranks`: a worker with two ranks, in real processes, writes the tokens of one process on the CPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mstar.cli.gpu_report.records import Row
from mstar.cli.gpu_report.sections import SectionOptions
from mstar.config import read_env_variable
from mstar.launch.gpus.visible import VARIABLE, count_gpus, visible_gpus
from mstar.requests import Sampling
from mstar.walk.load import load_model

REQUESTS, TOKENS = 4, 16
MODEL = f"{Path(__file__).with_name('probe.py')}:Probe"


def rows(options: SectionOptions) -> Iterator[Row]:
    """One process on the CPU, a worker on the device, and two ranks on devices of their own."""
    sampling = [Sampling(max_tokens=TOKENS, temperature=row % 2, seed=row) for row in range(REQUESTS)]
    model = load_model(MODEL)
    request_class = sys.modules[type(model).__module__].ProbeRequest  # of the module that workers load from the file
    requests = [request_class([5 + row, 7, 11 * (row + 1)], each) for row, each in enumerate(sampling)]
    expected = [[int(one.value) for one in model.run(request).emissions] for request in requests]
    yield _compare("one worker", f'[workers.local]\ndevice = "{options.device}"\n', requests, expected)
    visible = visible_gpus(read_env_variable(VARIABLE), count_gpus()) or ()
    if options.device.startswith("cuda") and len(visible) < 2:
        yield Row(what="two ranks, NCCL", state="skipped", note="one GPU is visible")
        yield _compare("two ranks on the CPU, gloo", "[workers.local]\nranks = 2\n", requests, expected)
        return
    device = "cuda" if options.device.startswith("cuda") else options.device
    backend = "NCCL" if device == "cuda" else "gloo"
    placement = f'[workers.local]\ndevice = "{device}"\nranks = 2\n'
    yield _compare(f"two ranks, {backend}", placement, requests, expected)


def _compare(what: str, placement: str, requests: list[Any], expected: list[list[int]]) -> Row:
    from mstar.frontend.actor import FrontendActor
    from mstar.launch.local_launcher import LocalLauncher
    from mstar.wire.messages import Peer

    with LocalLauncher({"probe": MODEL}, {"probe": placement}, standby=False) as launcher:
        frontend = FrontendActor(launcher.actor_loop, Peer("front", 0), launcher.conductors)
        launcher.add_frontend(frontend)
        started_at = time.perf_counter()
        streams = [frontend.open_stream("probe", request) for request in requests]
        written = [[int(one.value) for one in stream] for stream in streams]
        seconds = time.perf_counter() - started_at
    equal = sum(
        a == b for mine, theirs in zip(written, expected, strict=True) for a, b in zip(mine, theirs, strict=False)
    )
    share = equal / (REQUESTS * TOKENS)
    state = "ok" if share == 1 else "failed"
    return Row(what=what, state=state, value=share, unit="of the tokens are equal", note=f"{seconds:.2f} s")
