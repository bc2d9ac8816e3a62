"""The cost of moving a value: within a process, through shared memory, and by Mooncake or TCP between two addresses.

Two processes of one machine, at the loopback addresses 127.0.0.1 and 127.0.0.2: there is no network card and no switch,
so the figures are the cost of the software only. One process packs a value, the other reads it; only reading is timed,
because packing is one copy into the arena for every transport. Arrays below 16 KB travel in the message itself. The
baseline of each read by Mooncake is a bare `transfer_sync_read` of as many bytes, of the same slot, into registered and
warm memory. Plain TCP, our transport without Mooncake, is measured beside it.

Workload: the KV cache of 2,000 tokens of a decoder of the shape of SmolLM2-135M (30 layers, 3 KV heads of 64, bf16:
46 MB), which is what a prefill worker sends to a decode worker; and arrays of 16 KB (the smallest that leave the
message), 1 MB (one picture of 600 x 600 pixels) and 8 MB.
"""

from __future__ import annotations

import ctypes
import mmap
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from bench.claims import Claim, Row, paired_ratio, print_table
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.sampler_state import SamplerState
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.transfer.remote_store import RemoteSlot
from mstar.worker.commands import ExportedState

LAYERS, HEADS, SIZE = 30, 3, 64
TOKENS = 2000
KV = "KV of 2,000 tokens"
REPEATS = 15
TARGET = 0.9
BYTES = {"16 KB": 16 << 10, "1 MB": 1 << 20, "8 MB": 8 << 20, KV: TOKENS * LAYERS * 2 * HEADS * SIZE * 2}
TRANSPORTS = ("shared memory", "mooncake", "tcp")
_KEY = bytes(range(32))
_HEADROOM = 96 << 20


def values() -> dict[str, Any]:
    """The values by name: arrays, and a state as one worker sends it to another."""
    store = KVStore(PagePool(-(-TOKENS // 16), 16), LAYERS, swap_bytes=0)
    row = torch.zeros(1, HEADS, SIZE, dtype=torch.bfloat16)
    for index in range(LAYERS):
        for memory in store.layer(index, row, row):
            memory.normal_()
    cache = PagedKV(store, SamplerState(None))
    store.pool.extend(cache.table, TOKENS)
    plain = {name: torch.randn(size // 4) for name, size in BYTES.items() if name != KV}
    return plain | {KV: ExportedState("lm", "kv", cache.export())}


def codecs(ip: str) -> dict[str, ArenaCodec]:
    """A codec for each transport."""
    far = {kind: HostEndpoint(ip, _KEY, lambda _: False, kind) for kind in TRANSPORTS[1:]}
    return {hop: ArenaCodec(_HEADROOM, endpoint=far.get(hop)) for hop in TRANSPORTS}


def send_values() -> None:
    """The other process: pack each requested value."""
    torch.set_num_threads(1)
    made, ways = values(), codecs("127.0.0.2")
    for line in sys.stdin:
        hop, name = line.strip().split("|")
        print(ways[hop].pack(made[name], "reader").hex(), flush=True)


class SenderProcess:
    """Client of the process that sends."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "from bench.transfer import send_values; send_values()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def request_packed(self, hop: str, name: str) -> bytes:
        """A value, packed for this transport."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{hop}|{name}\n")
        return bytes.fromhex(self._process.stdout.readline())

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


class RawRead:
    """The transfer engine alone."""

    def __init__(self) -> None:
        from mooncake.engine import TransferEngine  # its codec has made it quiet

        self._engine = TransferEngine()
        self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
        self._memory = mmap.mmap(-1, _HEADROOM)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._engine.register_memory(self._address, _HEADROOM)

    def read(self, data: bytes) -> None:
        """Read the slot that a packed value names."""
        far = msgspec.convert(msgspec.msgpack.decode(data)[2], RemoteSlot)
        self.read_bytes(far.target, far.arena_address + far.offset, far.length)
        for export in far.exports:
            self.read_bytes(far.target, export.address, export.length)

    def read_bytes(self, target: str, address: int, length: int) -> None:
        """Read registered memory of another process."""
        if self._engine.transfer_sync_read(target, self._address, address, length):
            raise SystemExit("the bare read failed")


def time_call(act: Callable[[], Any]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    act()
    return (time.perf_counter() - start) * 1e3


def in_process_ms(value: Any) -> float:
    """Milliseconds until another thread of this process has a value and has answered, halved."""
    there, back = queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()
    thread = threading.Thread(target=lambda: back.put(there.get()))
    thread.start()
    taken = time_call(lambda: (there.put(value), back.get())) / 2
    thread.join()
    return taken


def measure() -> dict[tuple[str, str], list[float]]:
    """Milliseconds by value and transport, in turns."""
    made, ways, giver = values(), codecs("127.0.0.1"), SenderProcess()
    bare, times = RawRead(), dict[tuple[str, str], list[float]]()
    try:
        for repeat in range(-2, REPEATS):  # two rounds to warm up
            for name, value in made.items():
                row = {"in process": in_process_ms(value)}
                for hop in TRANSPORTS:
                    data = giver.request_packed(hop, name)
                    if hop == "mooncake" and repeat % 2:  # now the one first, now the other
                        row["bare mooncake"] = time_call(lambda data=data: bare.read(data))
                    row[hop] = time_call(lambda hop=hop, data=data: ways[hop].unpack(data, "giver", may_wait=True))
                if "bare mooncake" not in row:
                    data = giver.request_packed("mooncake", name)
                    row["bare mooncake"] = time_call(lambda data=data: bare.read(data))
                    ways["mooncake"].unpack(data, "giver", may_wait=True)
                if repeat >= 0:
                    for hop, taken in row.items():
                        times.setdefault((name, hop), []).append(taken)
    finally:
        giver.end()
        for codec in ways.values():
            codec.close()
    return times


def measure_transfer() -> Claim:
    """The speed of each transport for each value, relative to a bare read by Mooncake."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = measure()
    torch.set_num_threads(threads)
    print_table([Row(f"{name}, {hop}", "ms", taken) for (name, hop), taken in times.items()])
    far = {key: taken for key, taken in times.items() if key[1] != "in process"}
    print_table(
        [Row(f"{name}, {hop}", "MB/s", [BYTES[name] / 1e3 / ms for ms in taken]) for (name, hop), taken in far.items()]
    )
    return transfer_claim(times)


def transfer_claim(times: Mapping[tuple[str, str], Sequence[float]]) -> Claim:
    """The smallest speed of all sizes relative to a bare read. Above 1 ours is faster: the bare engine polls."""

    def speeds(hop: str, baseline: str) -> dict[str, float]:
        return {name: round(paired_ratio(times[name, baseline], times[name, hop]), 2) for name in BYTES}

    ours, tcp = speeds("mooncake", "bare mooncake"), speeds("tcp", "mooncake")
    measured = ", ".join(f"{name} {speed:g}" for name, speed in ours.items())
    faster = [name for name, speed in tcp.items() if speed >= 1]
    text = (
        f"between two loopback addresses of one machine, values of every size move by Mooncake with at least {TARGET} "
        f"of the speed of a bare Mooncake read; measured: {measured}; plain TCP is as fast as or faster than our "
        f"Mooncake transport for {', '.join(faster) or 'no size'}"
    )
    value = min(ours.values())
    more = {"speed_relative_to_bare_mooncake": ours, "tcp_speed_relative_to_ours_by_mooncake": tcp}
    return Claim(text, value, TARGET, value >= TARGET, more)
