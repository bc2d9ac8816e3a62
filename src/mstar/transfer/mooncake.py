"""Remote store on Mooncake's transfer engine: one-sided RDMA reads of an arena on another host, and a one-sided mark.

The arena is registered memory, as are segments for exports. A reader reads the data, then the slot's table entry: if
that still names the generation, the data is intact. Then it writes its read mark. The Python process of the sender
takes no part.

It uses RDMA if the host has RDMA devices (not measured: none were available), else TCP. The engine listens on all
addresses of its host and has no authentication: any host that reaches its ports can read and write arenas and exports,
but no other memory. Use it on a private network only.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mstar.errors import MstarError
from mstar.transfer.arena import ENTRY_BYTES, MARK_OFFSET_BYTES, ArenaMemory, align_up, entry_offset, is_unread
from mstar.transfer.remote_store import PeerUnreachable, RemoteSlot, StaleSlot

PROBE_TIMEOUT_S = 2.0
"""Seconds to wait for the first answer of a peer."""
TRANSFER_TIMEOUT_S = 5.0
"""Timeout of one transfer in seconds."""
_SPIN_S = 60e-6
"""Seconds of busy-waiting before a transfer is polled with pauses: small ones finish within it."""
_MIN_POLL_INTERVAL_S = 20e-6
_MAX_POLL_INTERVAL_S = 300e-6
_RDMA_DEVICES_DIRECTORY = Path("/sys/class/infiniband")
_LOG_LEVEL_FATAL = 3
"""glog level that only prints fatal errors: all others are raised by this module."""
_FAILED = -1
_INVALID_BATCHES = (0, _FAILED, (1 << 64) - 1)
"""Return values of a failed submission. Polling one of these crashes the process."""


class MooncakeStore:
    """Reads slots of other hosts, and serves the arena of this process.

    It uses one engine to serve and one to read: an engine caches what it knows of an address for good, so a new one is
    created when a new incarnation takes over an address.
    """

    def __init__(self, ip: str, memory: ArenaMemory) -> None:
        self._ip = ip
        self._serving_engine: Any = _create_engine(ip)
        self._base = memory.address
        self._serving_engine.register_memory(self._base, len(memory.view))
        self.name = f"mooncake {ip}:{self._serving_engine.get_rpc_port()}"
        self._lock = threading.Lock()
        self._reading_engine: Any = None
        self._registered: dict[int, int] = {}
        self._reachable: set[str] = set()
        """Targets that answered a probe."""
        self._stale_targets: set[str] = set()
        """Targets for which the reading engine can have an outdated cache."""
        self._retired_engines: list[Any] = []
        """Replaced engines. Closing one blocks the process for a second, so it is deferred to `close`."""
        self._abandoned: list[tuple[Any, int, memoryview]] = []
        """Timed-out transfers that can still write to their memory."""

    serves_exports = True

    def serve_memory(self, address: int, size: int) -> None:
        """Serve memory beside the arena. Thread-safe."""
        if (engine := self._serving_engine) is not None and engine.register_memory(address, size):
            fix = "raise the limit of locked memory of this process (ulimit -l)"
            raise MstarError(f"Mooncake cannot register {size} bytes of memory for exports\n  fix: {fix}")

    def stop_serving(self, address: int) -> None:
        """Stop serving memory. Thread-safe."""
        if (engine := self._serving_engine) is not None:
            engine.unregister_memory(address)

    def register_memory(self, address: int, size: int) -> None:
        """Register memory to read into. Needed for RDMA only; over TCP unregistered memory is not remotely writable."""
        if _rdma_devices():
            with self._lock:
                self._registered[address] = size
                if self._reading_engine is not None:
                    self._reading_engine.register_memory(address, size)

    def unregister_memory(self, address: int) -> None:
        """Unregister memory."""
        with self._lock:
            if self._registered.pop(address, None) is not None and self._reading_engine is not None:
                self._reading_engine.unregister_memory(address)

    def read(
        self, slot: RemoteSlot, address: int, into: memoryview, exports: Sequence[tuple[int, memoryview]] = ()
    ) -> None:
        """Read a slot and mark it as read. Raises PeerUnreachable or StaleSlot."""
        self._probe(slot.target)
        for export, (target, memory) in zip(slot.exports, exports, strict=True):
            self._transfer("read", slot.target, (target, export.address, export.length), memory)
        end = align_up(slot.length)
        entry, table = into[end : end + ENTRY_BYTES], slot.arena_address + entry_offset(slot.slot)
        if slot.length:
            self._transfer("read", slot.target, (address, slot.arena_address + slot.offset, slot.length), into)
        self._transfer("read", slot.target, (address + end, table, ENTRY_BYTES), into)
        if not is_unread(entry.cast("Q"), slot.generation, slot.offset, slot.length):
            raise StaleSlot
        self._mark_read(slot, address + end, entry)

    def free(self, slot: RemoteSlot) -> None:
        """Mark a slot as read without reading it. Raises PeerUnreachable."""
        self._probe(slot.target)
        entry = (ctypes.c_char * ENTRY_BYTES)()
        self._mark_read(slot, ctypes.addressof(entry), memoryview(entry).cast("B"))

    def forget(self, target: str) -> None:
        """Treat the target as new. The engine closes its connections itself."""
        self._reachable.discard(target)
        self._stale_targets.add(target)

    def close(self) -> None:
        """Close the engines and their threads. Takes a second."""
        if self._serving_engine is not None:
            self._serving_engine.unregister_memory(self._base)
        self._serving_engine = self._reading_engine = None
        self._retired_engines.clear()

    def _mark_read(self, slot: RemoteSlot, address: int, entry: memoryview) -> None:
        entry.cast("Q")[0] = slot.generation
        self._transfer(
            "write", slot.target, (address, slot.arena_address + entry_offset(slot.slot) + MARK_OFFSET_BYTES, 8), entry
        )

    def _probe(self, target: str) -> None:
        """Check that the target answers, in a separate thread.

        The engine itself would wait for minutes, and block all other transfers meanwhile.
        """
        if target in self._reachable:
            return
        status = [_FAILED]
        engine = self._reader_engine()

        def probe() -> None:
            status[0] = engine.send_probe(target)

        thread = threading.Thread(target=probe, name="mstar-store-probe", daemon=True)
        thread.start()
        thread.join(PROBE_TIMEOUT_S)
        if status[0]:
            raise PeerUnreachable(f"no answer within {PROBE_TIMEOUT_S:g} s")
        with self._lock:
            if target in self._stale_targets:
                self._retired_engines.append(self._reading_engine)
                self._reading_engine = None
                self._stale_targets.clear()
        self._reachable.add(target)

    def _transfer(self, kind: str, target: str, span: tuple[int, int, int], memory: memoryview) -> None:
        """Run one transfer of (local address, remote address, length). Raises PeerUnreachable.

        It polls: waiting inside the engine would occupy a core that the transfer itself needs on a small host.
        """
        engine = self._reader_engine()
        self._drop_finished()
        submit = engine.batch_transfer_async_read if kind == "read" else engine.batch_transfer_async_write
        start = time.monotonic()
        batch = submit(target, *([value] for value in span))
        if batch in _INVALID_BATCHES:
            self._reachable.discard(target)
            raise PeerUnreachable("the engine rejected the transfer")
        interval_s = _MIN_POLL_INTERVAL_S
        while not (state := engine.transfer_check_status(batch)):
            elapsed_s = time.monotonic() - start
            if elapsed_s > TRANSFER_TIMEOUT_S:
                with self._lock:
                    self._abandoned.append((engine, batch, memory))
                self._reachable.discard(target)
                raise PeerUnreachable(f"the transfer timed out after {TRANSFER_TIMEOUT_S:.0f} s")
            if elapsed_s > _SPIN_S:
                time.sleep(interval_s)
                interval_s = min(1.3 * interval_s, _MAX_POLL_INTERVAL_S)
        if state < 0:
            self._reachable.discard(target)
            raise PeerUnreachable("the transfer failed")

    def _reader_engine(self) -> Any:
        """The engine to read with, created on first use."""
        with self._lock:
            if self._serving_engine is None:
                raise PeerUnreachable("the store is closed")
            if self._reading_engine is None:
                self._reading_engine = _create_engine(self._ip)
                for address, size in self._registered.items():
                    self._reading_engine.register_memory(address, size)
            return self._reading_engine

    def _drop_finished(self) -> None:
        """Drop references to memory of timed-out transfers that have finished."""
        if self._abandoned:
            with self._lock:
                self._abandoned = [
                    transfer for transfer in self._abandoned if not transfer[0].transfer_check_status(transfer[1])
                ]


def _create_engine(ip: str) -> Any:
    library = importlib.import_module("mooncake.engine")
    _silence_logs(str(library.__file__))
    engine, devices = library.TransferEngine(), _rdma_devices()
    if engine.initialize(ip, "P2PHANDSHAKE", "rdma" if devices else "tcp", ",".join(devices)):
        fix = "use an address of this host, or uninstall Mooncake to transfer over plain TCP"
        raise MstarError(f"Mooncake's transfer engine failed to start at {ip}\n  fix: {fix}")
    return engine


def _rdma_devices() -> list[str]:
    """RDMA devices of this host."""
    return sorted(path.name for path in _RDMA_DEVICES_DIRECTORY.iterdir()) if _RDMA_DEVICES_DIRECTORY.is_dir() else []


def _silence_logs(library: str) -> None:
    """Silence the log of the engine on stderr; it has no other switch than this glog flag."""
    with suppress(ValueError):  # absent in other builds
        ctypes.c_int.in_dll(ctypes.CDLL(library), "_ZN3fLI17FLAGS_minloglevelE").value = _LOG_LEVEL_FATAL
