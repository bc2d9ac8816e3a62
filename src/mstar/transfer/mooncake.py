"""Mooncake's transfer engine as a store: one-sided reads of another process's arena, and a one-sided mark.

The arena is registered memory. A reader reads the bytes, then the slot's entry in the table: if that still names their
generation, nobody has touched them. Then it writes its mark there. The far end's Python takes no part in any of this.

Over RDMA where the host has devices for it (not measured: there were none), else over TCP. The engine listens at all
addresses of its host and knows no key: whoever reaches its ports may read and write arenas, though no other memory. It
is for a network of one's own.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mstar.errors import MstarError
from mstar.transfer.arena import ENTRY_BYTES, MARK_OFFSET_BYTES, ArenaMemory, align_up, entry_offset, is_unread
from mstar.transfer.remote_store import PeerUnreachable, RemoteSlot, StaleSlot

PROBE_TIMEOUT_S = 2.0
"""How long somebody may take to answer for the first time."""
TRANSFER_TIMEOUT_S = 5.0
"""How long one transfer may take."""
_SPIN_S = 60e-6
"""How long a transfer is waited for without pause: small ones are over by then."""
_POLL_INTERVALS_S = (20e-6, 300e-6)
_RDMA_DEVICES_DIRECTORY = Path("/sys/class/infiniband")
_LOG_LEVEL_FATAL = 3
"""Only what ends the process: all other things the engine has to say, this module says by raising."""
_FAILED = -1
_INVALID_BATCHES = (0, _FAILED, (1 << 64) - 1)
"""What the engine gives instead of a transfer; to ask for the state of such a one ends the process."""


class MooncakeStore:
    """Reads slots of other hosts, and lets them read those of this process's arena.

    There is one engine to be read from and another one to read with: an engine never forgets what it knows of an
    address, so when another life has come to one, it is read with a new engine.
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
        """Targets that have answered."""
        self._stale_targets: set[str] = set()
        """Targets of which the engine may know what is over."""
        self._retired_engines: list[Any] = []
        """Engines of before: to end one stops the whole process for a second, so that is left for the end."""
        self._abandoned: list[tuple[Any, int, memoryview]] = []
        """Transfers that were given up and may still touch the memory they have."""

    def register_memory(self, address: int, size: int) -> None:
        """Register memory to read into, if that is needed: over TCP it is not, and then nobody can write there."""
        if _rdma_devices():
            with self._lock:
                self._registered[address] = size
                if self._reading_engine is not None:
                    self._reading_engine.register_memory(address, size)

    def unregister_memory(self, address: int) -> None:
        """Undo that."""
        with self._lock:
            if self._registered.pop(address, None) is not None and self._reading_engine is not None:
                self._reading_engine.unregister_memory(address)

    def read(self, slot: RemoteSlot, address: int, into: memoryview) -> None:
        """Read a slot, and mark it. Raises Unreached, Stale."""
        self._probe(slot.target)
        end = align_up(slot.length)
        entry, table = into[end : end + ENTRY_BYTES], slot.arena_address + entry_offset(slot.slot)
        self._transfer("read", slot.target, (address, slot.arena_address + slot.offset, slot.length), into)
        self._transfer("read", slot.target, (address + end, table, ENTRY_BYTES), into)
        if not is_unread(entry.cast("Q"), slot.generation, slot.offset, slot.length):
            raise StaleSlot
        self._mark_read(slot, address + end, entry)

    def free(self, slot: RemoteSlot) -> None:
        """Mark a slot as read that will not be read. Raises Unreached."""
        self._probe(slot.target)
        entry = (ctypes.c_char * ENTRY_BYTES)()
        self._mark_read(slot, ctypes.addressof(entry), memoryview(entry).cast("B"))

    def forget(self, target: str) -> None:
        """The engine closes its connections itself; whoever comes to that address is somebody else."""
        self._reachable.discard(target)
        self._stale_targets.add(target)

    def close(self) -> None:
        """End the engines and their threads, which takes a second."""
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
        """See whether somebody is there who answers. The engine waits for that for minutes, and while it does no other
        transfer begins, so it is asked beside it."""
        if target in self._reachable:
            return
        answer = [_FAILED]
        engine = self._reader_engine()

        def probe() -> None:
            answer[0] = engine.send_probe(target)

        thread = threading.Thread(target=probe, name="mstar-store-probe", daemon=True)
        thread.start()
        thread.join(PROBE_TIMEOUT_S)
        if answer[0]:
            raise PeerUnreachable("nobody answers there")
        with self._lock:
            if target in self._stale_targets:
                self._retired_engines.append(self._reading_engine)
                self._reading_engine = None
                self._stale_targets.clear()
        self._reachable.add(target)

    def _transfer(self, kind: str, target: str, span: tuple[int, int, int], memory: memoryview) -> None:
        """One transfer: (address here, address there, length). Raises Unreached.

        The engine's own waiting takes a whole core, which on a small host the transfer itself needs.
        """
        engine = self._reader_engine()
        self._drop_finished()
        begin = engine.batch_transfer_async_read if kind == "read" else engine.batch_transfer_async_write
        start = time.monotonic()
        batch = begin(target, *([value] for value in span))
        if batch in _INVALID_BATCHES:
            self._reachable.discard(target)
            raise PeerUnreachable("the engine does not begin")
        pause, longest = _POLL_INTERVALS_S
        while not (state := engine.transfer_check_status(batch)):
            waited = time.monotonic() - start
            if waited > TRANSFER_TIMEOUT_S:
                with self._lock:
                    self._abandoned.append((engine, batch, memory))
                self._reachable.discard(target)
                raise PeerUnreachable(f"it was not done in {TRANSFER_TIMEOUT_S:.0f} s")
            if waited > _SPIN_S:
                time.sleep(pause)
                pause = min(1.3 * pause, longest)
        if state < 0:
            self._reachable.discard(target)
            raise PeerUnreachable("the transfer failed")

    def _reader_engine(self) -> Any:
        """The engine to read with."""
        with self._lock:
            if self._serving_engine is None:
                raise PeerUnreachable("the store is closed")
            if self._reading_engine is None:
                self._reading_engine = _create_engine(self._ip)
                for address, size in self._registered.items():
                    self._reading_engine.register_memory(address, size)
            return self._reading_engine

    def _drop_finished(self) -> None:
        """Let go of memory that late transfers do not touch any more."""
        if self._abandoned:
            with self._lock:
                self._abandoned = [one for one in self._abandoned if not one[0].transfer_check_status(one[1])]


def _create_engine(ip: str) -> Any:
    library = importlib.import_module("mooncake.engine")
    _silence_logs(str(library.__file__))
    made, devices = library.TransferEngine(), _rdma_devices()
    if made.initialize(ip, "P2PHANDSHAKE", "rdma" if devices else "tcp", ",".join(devices)):
        fix = "give an address of this host, or uninstall Mooncake: values then go over plain connections"
        raise MstarError(f"Mooncake's transfer engine does not start at {ip}\n  fix: {fix}")
    return made


def _rdma_devices() -> list[str]:
    """The host's devices for RDMA."""
    return sorted(path.name for path in _RDMA_DEVICES_DIRECTORY.iterdir()) if _RDMA_DEVICES_DIRECTORY.is_dir() else []


def _silence_logs(library: str) -> None:
    """The engine logs to the terminal, and hears of no other wish than this."""
    with suppress(ValueError):  # another build of it may have no such place
        ctypes.c_int.in_dll(ctypes.CDLL(library), "_ZN3fLI17FLAGS_minloglevelE").value = _LOG_LEVEL_FATAL
