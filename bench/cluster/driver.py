"""Hosts for benches, which are network namespaces of one machine, and the process that serves on the first of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster import hosts as namespaces


class Driver(namespaces.Driver):
    """A process on the first host; what it can be asked is in `bench/cluster/driver_process.py`."""

    module = "bench.cluster.driver_process"

    def __init__(self, hosts: namespaces.Hosts) -> None:
        super().__init__(hosts, 1)


@contextmanager
def hosts(count: int) -> Iterator[Any]:
    """Start this number of hosts with a Ray node each."""
    if why := namespaces.unsupported_reason():
        raise RuntimeError(f"{why}\n  fix: run it as root on Linux with iproute2")
    made = namespaces.Hosts(count)
    try:
        made.open()
        yield made
    finally:
        made.close()
