"""Section `transfers`: copies between device, host, other GPUs and other processes, and which RDMA devices there are.

Between workers, mstar moves tensors through host memory: shared memory on one host, Mooncake or TCP between hosts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mstar.cli.gpu_report.records import Row
from mstar.cli.gpu_report.sections import SectionOptions
from mstar.transfer.codec import ArenaCodec

SIZE_BYTES = 46 << 20
"""KV cache of 2,000 tokens of SmolLM2-135M in bf16."""
REPEATS = 10
_ARENA_BYTES = 96 << 20
_RDMA = Path("/sys/class/infiniband")


def rows(options: SectionOptions) -> Iterator[Row]:
    """Measure each path."""
    import torch

    from mstar.nn.devices import open_device

    device = open_device(options.device)
    host = torch.zeros(SIZE_BYTES, dtype=torch.uint8)
    on_device = host.to(device)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    yield _measure("device to host", on_device.cpu, wait)
    yield _measure("host to device", lambda: host.to(device), wait)
    if device.type == "cuda":
        pinned = torch.zeros(SIZE_BYTES, dtype=torch.uint8, pin_memory=True)
        yield _measure("device to pinned host", lambda: pinned.copy_(on_device, non_blocking=True), wait)
        if torch.cuda.device_count() > 1:
            yield _measure("cuda:0 to cuda:1", lambda: on_device.to("cuda:1"), wait)
        else:
            yield Row(what="cuda:0 to cuda:1", state="skipped", note="one GPU is visible")
    codec = ArenaCodec(_ARENA_BYTES)
    yield _measure(
        "device to another worker of this host", lambda: codec.unpack(codec.pack(on_device, "other"), "self"), wait
    )
    names = sorted(entry.name for entry in _RDMA.iterdir()) if _RDMA.is_dir() else []
    yield Row(
        what="RDMA devices", state="ok" if names else "skipped", value=len(names), note=", ".join(names) or "none"
    )


def _measure(what: str, copy: Callable[[], Any], wait: Callable[[], None]) -> Row:
    """Median rate of a copy."""
    copy()
    wait()
    times: list[float] = []
    for _ in range(REPEATS):
        started_at = time.perf_counter()
        copy()
        wait()
        times.append(time.perf_counter() - started_at)
    rates = sorted(SIZE_BYTES / seconds / 1e9 for seconds in times)
    note = f"{SIZE_BYTES >> 20} MB, {rates[0]:.2f} to {rates[-1]:.2f} in {REPEATS} copies"
    return Row(what=what, value=rates[REPEATS // 2], unit="GB/s", note=note)
