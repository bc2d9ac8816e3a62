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
from mstar.transfer.arena import ENTRY_BYTES, MARK_AT, Memory, aligned, entry_at, is_unread
from mstar.transfer.stores import Far, Stale, Unreached

MEET_S = 2.0
"""How long somebody may take to answer for the first time."""
PATIENCE_S = 5.0
"""How long one transfer may take."""
_EAGER_S = 60e-6
"""How long a transfer is waited for without pause: small ones are over by then."""
_PAUSES_S = (20e-6, 300e-6)
_DEVICES = Path("/sys/class/infiniband")
_QUIET = 3
"""Only what ends the process: all other things the engine has to say, this module says by raising."""
_FAILED = -1
_NO_BATCH = (0, _FAILED, (1 << 64) - 1)
"""What the engine gives instead of a transfer; to ask for the state of such a one ends the process."""


class MooncakeStore:
    """Reads slots of other hosts, and lets them read those of this process's arena.

    There is one engine to be read from and another one to read with: an engine never forgets what it knows of an
    address, so when another life has come to one, it is read with a new engine.
    """

    def __init__(self, ip: str, memory: Memory) -> None:
        self._ip = ip
        self._serving: Any = _engine(ip)
        self._base = memory.address
        self._serving.register_memory(self._base, len(memory.view))
        self.name = f"mooncake {ip}:{self._serving.get_rpc_port()}"
        self._lock = threading.Lock()
        self._reading: Any = None
        self._admitted: dict[int, int] = {}
        self._met: set[str] = set()
        """Targets that have answered."""
        self._former: set[str] = set()
        """Targets of which the engine may know what is over."""
        self._retired: list[Any] = []
        """Engines of before: to end one stops the whole process for a second, so that is left for the end."""
        self._late: list[tuple[Any, int, memoryview]] = []
        """Transfers that were given up and may still touch the memory they have."""

    def admit(self, address: int, size: int) -> None:
        """Register memory to read into, if that is needed: over TCP it is not, and then nobody can write there."""
        if _devices():
            with self._lock:
                self._admitted[address] = size
                if self._reading is not None:
                    self._reading.register_memory(address, size)

    def dismiss(self, address: int) -> None:
        """Undo that."""
        with self._lock:
            if self._admitted.pop(address, None) is not None and self._reading is not None:
                self._reading.unregister_memory(address)

    def read(self, far: Far, address: int, into: memoryview) -> None:
        """Read a slot, and mark it. Raises Unreached, Stale."""
        self._meet(far.target)
        end = aligned(far.length)
        entry, table = into[end : end + ENTRY_BYTES], far.base + entry_at(far.slot)
        self._move("read", far.target, (address, far.base + far.offset, far.length), into)
        self._move("read", far.target, (address + end, table, ENTRY_BYTES), into)
        if not is_unread(entry.cast("Q"), far.generation, far.offset, far.length):
            raise Stale
        self._mark(far, address + end, entry)

    def free(self, far: Far) -> None:
        """Mark a slot as read that will not be read. Raises Unreached."""
        self._meet(far.target)
        entry = (ctypes.c_char * ENTRY_BYTES)()
        self._mark(far, ctypes.addressof(entry), memoryview(entry).cast("B"))

    def forget(self, target: str) -> None:
        """The engine closes its connections itself; whoever comes to that address is somebody else."""
        self._met.discard(target)
        self._former.add(target)

    def close(self) -> None:
        """End the engines and their threads, which takes a second."""
        if self._serving is not None:
            self._serving.unregister_memory(self._base)
        self._serving = self._reading = None
        self._retired.clear()

    def _mark(self, far: Far, address: int, entry: memoryview) -> None:
        entry.cast("Q")[0] = far.generation
        self._move("write", far.target, (address, far.base + entry_at(far.slot) + MARK_AT, 8), entry)

    def _meet(self, target: str) -> None:
        """See whether somebody is there who answers. The engine waits for that for minutes, and while it does no other
        transfer begins, so it is asked beside it."""
        if target in self._met:
            return
        answer = [_FAILED]
        engine = self._engine()

        def probe() -> None:
            answer[0] = engine.send_probe(target)

        thread = threading.Thread(target=probe, name="mstar-store-probe", daemon=True)
        thread.start()
        thread.join(MEET_S)
        if answer[0]:
            raise Unreached("nobody answers there")
        with self._lock:
            if target in self._former:
                self._retired.append(self._reading)
                self._reading = None
                self._former.clear()
        self._met.add(target)

    def _move(self, kind: str, target: str, what: tuple[int, int, int], memory: memoryview) -> None:
        """One transfer: (address here, address there, length). Raises Unreached.

        The engine's own waiting takes a whole core, which on a small host the transfer itself needs.
        """
        engine = self._engine()
        self._tidy()
        begin = engine.batch_transfer_async_read if kind == "read" else engine.batch_transfer_async_write
        start = time.monotonic()
        batch = begin(target, *([value] for value in what))
        if batch in _NO_BATCH:
            self._met.discard(target)
            raise Unreached("the engine does not begin")
        pause, longest = _PAUSES_S
        while not (state := engine.transfer_check_status(batch)):
            waited = time.monotonic() - start
            if waited > PATIENCE_S:
                with self._lock:
                    self._late.append((engine, batch, memory))
                self._met.discard(target)
                raise Unreached(f"it was not done in {PATIENCE_S:.0f} s")
            if waited > _EAGER_S:
                time.sleep(pause)
                pause = min(1.3 * pause, longest)
        if state < 0:
            self._met.discard(target)
            raise Unreached("the transfer failed")

    def _engine(self) -> Any:
        """The engine to read with."""
        with self._lock:
            if self._serving is None:
                raise Unreached("the store is closed")
            if self._reading is None:
                self._reading = _engine(self._ip)
                for address, size in self._admitted.items():
                    self._reading.register_memory(address, size)
            return self._reading

    def _tidy(self) -> None:
        """Let go of memory that late transfers do not touch any more."""
        if self._late:
            with self._lock:
                self._late = [one for one in self._late if not one[0].transfer_check_status(one[1])]


def _engine(ip: str) -> Any:
    library = importlib.import_module("mooncake.engine")
    _hush(str(library.__file__))
    made, devices = library.TransferEngine(), _devices()
    if made.initialize(ip, "P2PHANDSHAKE", "rdma" if devices else "tcp", ",".join(devices)):
        fix = "give an address of this host, or uninstall Mooncake: values then go over plain connections"
        raise MstarError(f"Mooncake's transfer engine does not start at {ip}\n  fix: {fix}")
    return made


def _devices() -> list[str]:
    """The host's devices for RDMA."""
    return sorted(path.name for path in _DEVICES.iterdir()) if _DEVICES.is_dir() else []


def _hush(library: str) -> None:
    """The engine logs to the terminal, and hears of no other wish than this."""
    with suppress(ValueError):  # another build of it may have no such place
        ctypes.c_int.in_dll(ctypes.CDLL(library), "_ZN3fLI17FLAGS_minloglevelE").value = _QUIET
