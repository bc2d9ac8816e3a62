"""`python -m bench.kv_transfer`: a KV cache moves from one worker process to another of the same host, all steps timed.

The cache of 2,000 tokens of a decoder of the shape of SmolLM2-135M in bf16, 46 MB, is exported from its pages, packed,
unpacked by another process and loaded into pages there. The baseline copies as many bytes through shared memory: into a
new segment, and out of it in the other process. In turns; both processes use one thread. It is no claim: it shows what
the pages add to a bare copy.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import msgspec
import torch

from bench.claims import Row, paired_ratio, print_table
from bench.transfer import HEADS, LAYERS, SIZE, TOKENS
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.staging import use_shared_exports
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.segments import DATA_OFFSET_BYTES, Segment, SegmentRef

REPEATS = 25
PAGE_SIZE = 16
ARENA_BYTES = 96 << 20
BYTES = TOKENS * LAYERS * 2 * HEADS * SIZE * 2


def new_store() -> KVStore:
    """A KV cache with room for twice the tokens."""
    store = KVStore(PagePool(2 * TOKENS // PAGE_SIZE, PAGE_SIZE), LAYERS, swap_bytes=1 << 30)
    row = torch.zeros(1, HEADS, SIZE, dtype=torch.bfloat16)
    for index in range(LAYERS):
        for memory in store.layer(index, row, row):
            memory.normal_()
    return store


def send() -> None:
    """The other process: export and pack a cache, or copy bytes, and print the seconds and what to read."""
    torch.set_num_threads(1)
    use_shared_exports(lambda size: Segment.create(size).data)
    store, codec = new_store(), ArenaCodec(ARENA_BYTES)
    cache = PagedKV(store, SamplerState())
    store.pool.extend(cache.table, TOKENS)
    raw, segment = torch.zeros(BYTES, dtype=torch.uint8).random_(), None
    for line in sys.stdin:
        started_at = time.perf_counter()
        if line.strip() == "kv":
            data = codec.pack(cache.export(), "reader")
        else:
            segment = Segment.copy_of(memoryview(raw.numpy()))
            data = msgspec.msgpack.encode(segment.ref(DATA_OFFSET_BYTES, BYTES))
        print(time.perf_counter() - started_at, data.hex(), flush=True)


def main() -> None:
    """Move and copy in turns."""
    torch.set_num_threads(1)
    command = [sys.executable, "-c", "from bench.kv_transfer import send; send()"]
    times: dict[str, list[float]] = {"KV cache from pages to pages": [], "bare copy through shared memory": []}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as sender:
        store, codec = new_store(), ArenaCodec(ARENA_BYTES)
        target = torch.zeros(BYTES, dtype=torch.uint8)
        for repeat in range(-2, REPEATS):  # two rounds to warm up
            for name, kind in zip(times, ("kv", "raw"), strict=True):
                sent_s, data = _request(sender, kind)
                started_at = time.perf_counter()
                if kind == "kv":
                    cache = PagedKV(store, SamplerState())
                    cache.load(codec.unpack(data, "sender"))
                    cache.free()
                else:
                    ref = msgspec.msgpack.decode(data, type=SegmentRef)
                    opened = Segment.open(ref, "sender", is_read_only=False)
                    target.copy_(torch.frombuffer(opened, dtype=torch.uint8, offset=DATA_OFFSET_BYTES))
                if repeat >= 0:
                    times[name].append(1e3 * (sent_s + time.perf_counter() - started_at))
        sender.kill()
    print_table([Row(name, "ms", values) for name, values in times.items()])
    moved, bare = times.values()
    print(f"a KV cache of {BYTES / 1e6:.0f} MB moves at {paired_ratio(bare, moved):.2f} of the speed of a bare copy")


def _request(sender: Any, kind: str) -> tuple[float, bytes]:
    sender.stdin.write(f"{kind}\n")
    seconds, data = sender.stdout.readline().split()
    return float(seconds), bytes.fromhex(data)


if __name__ == "__main__":
    main()
