"""`python -m bench.kv_transfer`: a KV cache moves from one worker process to another, all steps timed.

The cache of 2,000 tokens of a decoder of the shape of SmolLM2-135M in bf16, 46 MB, is exported from its pages, packed,
unpacked by another process and loaded into pages there. On one host the baseline copies as many bytes through shared
memory: into a new segment, and out of it in the other process; the same copy through a segment that both keep mapped is
printed beside it. Between hosts, here two loopback addresses, it is one read by Mooncake of memory that is ready. In
turns; all processes use one thread. It is no claim: it shows what the pages add to a bare copy.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from bench.claims import Row, paired_ratio, print_table
from bench.transfer import HEADS, LAYERS, SIZE, TOKENS, RawRead
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.staging import use_shared_exports
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.transfer.segments import DATA_OFFSET_BYTES, Segment, SegmentRef

REPEATS = 25
PAGE_SIZE = 16
ARENA_BYTES = 96 << 20
BYTES = TOKENS * LAYERS * 2 * HEADS * SIZE * 2
_KEY = bytes(range(32))
_MOVE, _BARE, _KEPT = "KV cache from pages to pages", "bare copy through shared memory", "bare copy, segment kept"
_FAR_MOVE, _FAR_BARE = "KV cache from pages to pages, Mooncake", "bare Mooncake read"


def new_store() -> KVStore:
    """A KV cache with room for twice the tokens."""
    store = KVStore(PagePool(2 * TOKENS // PAGE_SIZE, PAGE_SIZE), LAYERS, swap_bytes=1 << 30)
    row = torch.zeros(1, HEADS, SIZE, dtype=torch.bfloat16)
    for index in range(LAYERS):
        for memory in store.layer(index, row, row):
            memory.normal_()
    return store


def new_codecs(ip: str) -> dict[str, ArenaCodec]:
    """What packs for a process of this host, and for one of another host."""
    return {
        "kv": ArenaCodec(ARENA_BYTES),
        "far": ArenaCodec(ARENA_BYTES, endpoint=HostEndpoint(ip, _KEY, lambda _: False, "mooncake")),
    }


def send() -> None:
    """The other process: export and pack a cache, or copy bytes; print the seconds, page faults and what to read."""
    torch.set_num_threads(1)
    store, codecs = new_store(), new_codecs("127.0.0.2")
    cache = PagedKV(store, SamplerState())
    store.pool.extend(cache.table, TOKENS)
    raw, segment, kept = torch.zeros(BYTES, dtype=torch.uint8).random_(), None, Segment.create(BYTES)
    kept_bytes = torch.frombuffer(kept.data, dtype=torch.uint8)
    for line in sys.stdin:
        kind, faults, started_at = line.strip(), _page_faults(), time.perf_counter()
        if kind in codecs:
            use_shared_exports(codecs[kind].exports.allocate)
            data = codecs[kind].pack(cache.export(), "reader")
        elif kind == "kept":
            kept_bytes.copy_(raw)
            data = msgspec.msgpack.encode(kept.ref(DATA_OFFSET_BYTES, BYTES))
        else:
            segment = Segment.copy_of(memoryview(raw.numpy()))
            data = msgspec.msgpack.encode(segment.ref(DATA_OFFSET_BYTES, BYTES))
        print(time.perf_counter() - started_at, _page_faults() - faults, data.hex(), flush=True)


class Receiver:
    """The reading process, with the other one as its child."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._codecs = new_codecs("127.0.0.1")
        self._store = new_store()
        self._target = torch.zeros(BYTES, dtype=torch.uint8)
        self._engine = RawRead()
        self._kept: torch.Tensor | None = None
        self.faults: dict[str, list[float]] = {}
        """Page faults of both processes."""

    def time_ms(self, name: str, kind: str, receive: Callable[[bytes], None]) -> float:
        """Milliseconds that both processes take."""
        self._sender.stdin.write(f"{kind}\n")
        sent_s, sent_faults, data = self._sender.stdout.readline().split()
        faults, started_at = _page_faults(), time.perf_counter()
        receive(bytes.fromhex(data))
        taken_s = float(sent_s) + time.perf_counter() - started_at
        self.faults.setdefault(name, []).append(int(sent_faults) + _page_faults() - faults)
        return 1e3 * taken_s

    def load(self, kind: str, data: bytes) -> None:
        """Unpack a cache and load it into pages."""
        cache = PagedKV(self._store, SamplerState())
        cache.load(self._codecs[kind].unpack(data, "sender", may_wait=True))
        cache.free()

    def copy_new(self, data: bytes) -> None:
        """Copy the bytes of a segment that is mapped for this."""
        opened = Segment.open(msgspec.msgpack.decode(data, type=SegmentRef), "sender", is_read_only=False)
        self._target.copy_(torch.frombuffer(opened, dtype=torch.uint8, offset=DATA_OFFSET_BYTES))

    def copy_kept(self, data: bytes) -> None:
        """Copy the bytes of a segment that stays mapped."""
        if self._kept is None:
            segment = Segment.open_shared(msgspec.msgpack.decode(data, type=SegmentRef), "sender")
            self._kept = torch.frombuffer(segment, dtype=torch.uint8, offset=DATA_OFFSET_BYTES)
        self._target.copy_(self._kept)

    def bare_read_ms(self) -> float:
        """Milliseconds of a read by the engine alone, of an export that is ready."""
        taken_ms = 0.0

        def receive(data: bytes) -> None:
            nonlocal taken_ms
            started_at = time.perf_counter()
            self._engine.read(data)
            taken_ms = 1e3 * (time.perf_counter() - started_at)
            self._codecs["far"].unpack(data, "sender", may_wait=True)  # so that the sender can use the memory again

        self.time_ms(_FAR_BARE, "far", receive)
        return taken_ms

    def measure(self) -> dict[str, float]:
        """One round: milliseconds by name."""
        return {
            _MOVE: self.time_ms(_MOVE, "kv", lambda data: self.load("kv", data)),
            _BARE: self.time_ms(_BARE, "raw", self.copy_new),
            _KEPT: self.time_ms(_KEPT, "kept", self.copy_kept),
            _FAR_MOVE: self.time_ms(_FAR_MOVE, "far", lambda data: self.load("far", data)),
            _FAR_BARE: self.bare_read_ms(),
        }


def main() -> None:
    """Move and copy in turns."""
    torch.set_num_threads(1)
    command = [sys.executable, "-c", "from bench.kv_transfer import send; send()"]
    times: dict[str, list[float]] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as sender:
        receiver = Receiver(sender)
        for repeat in range(-4, REPEATS):  # rounds to warm up: two segments take turns
            for name, taken_ms in receiver.measure().items():
                if repeat >= 0:
                    times.setdefault(name, []).append(taken_ms)
        sender.kill()
    print_table([Row(name, "ms", taken) for name, taken in times.items()])
    near = (_MOVE, _BARE, _KEPT)
    print_table([Row(f"{name}, page faults", "", receiver.faults[name][-REPEATS:]) for name in near])
    for move, bare in ((_MOVE, _BARE), (_MOVE, _KEPT), (_FAR_MOVE, _FAR_BARE)):
        print(f"{BYTES / 1e6:.0f} MB, {move}: {paired_ratio(times[bare], times[move]):.2f} of the speed of a {bare}")


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    main()
