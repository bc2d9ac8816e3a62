"""Arrays between hosts, over Mooncake and TCP: round trips, authentication, failures, leaks."""

import gc
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mstar.errors import ReadFailed, WouldBlock
from mstar.testing.parity import is_identical
from mstar.transfer import mooncake, tcp
from mstar.transfer.codec import ArenaCodec, _decode
from mstar.transfer.remote_arrays import HostEndpoint
from tests.transfer.kinds import Plain

LARGE = 16 << 10
KEY = bytes(range(32))
EMPTY = {"slots": 0, "slot_bytes": 0}
STORES = ["mooncake", "tcp"]
pytestmark = pytest.mark.filterwarnings("error")


def codec(kind, ip="127.0.0.1", key=KEY, capacity=1 << 20):
    return ArenaCodec(capacity, endpoint=HostEndpoint(ip, key, lambda peer: peer == "neighbour", kind))


@pytest.fixture(params=STORES)
def kind(request):
    if request.param == "mooncake":
        pytest.importorskip("mooncake")
    return request.param


@pytest.fixture
def codecs(kind):
    pair = codec(kind), codec(kind, "127.0.0.2")
    for each in pair:
        each._arena._poison = True
    yield pair
    for each in pair:
        each.close()


def fetch(reader, data, sender="local"):
    return reader.unpack(data, sender, may_wait=True)


def fails(reader, data, reason=""):
    with pytest.raises(ReadFailed, match=rf"{reason}[\s\S]*\n  fix: "):
        fetch(reader, data)


def changed(data, **fields):
    """Packed bytes with a modified descriptor."""
    packed = _decode(data)
    return msgspec.msgpack.encode((packed.placed, packed.value, msgspec.structs.replace(packed.remote_slot, **fields)))


# ---------------------------------------------------------------- values
def test_values_of_all_kinds_round_trip(codecs):
    local, remote = codecs
    turned = torch.randn(300, 200).T
    value = {
        "small": torch.arange(3),
        "large": (torch.randn(100, 100), np.arange(LARGE), turned, turned[::3, 7:].to(torch.bfloat16)),
        "text": "x",
        "more": Plain([np.float32(2), None, 1 << 70], [b"x" * 40_000]),
        "odd": torch.arange(LARGE + 3, dtype=torch.uint8),
    }
    data = local.pack(value, "remote")
    assert local.stats()["slots"] == 1, "all arrays share one slot"
    back = fetch(remote, data)
    assert list(back) == list(value)
    assert is_identical([*back.values()], [*value.values()])
    assert local.stats() == EMPTY
    back["large"][0][:] = 0
    back["large"][1][:] = 0
    assert is_identical(back["odd"], value["odd"]), "they do not overlap"


def test_only_large_arrays_need_a_store(codecs):
    local, remote = codecs
    assert is_identical(remote.unpack(local.pack([torch.arange(3), "x"], "remote"), "local"), [torch.arange(3), "x"])


def test_without_may_wait_it_raises_would_block_and_loses_nothing(codecs):
    local, remote = codecs
    data = local.pack(torch.ones(LARGE), "remote")
    for _ in range(2):
        with pytest.raises(WouldBlock):
            remote.unpack(data, "local")
    assert is_identical(fetch(remote, data), torch.ones(LARGE))


def test_peers_on_one_host_still_share_memory(codecs):
    local, remote = codecs
    data = local.pack([torch.ones(LARGE), torch.zeros(LARGE)], "neighbour")
    assert local.stats()["slots"] == 2
    assert is_identical(remote.unpack(data, "local"), [torch.ones(LARGE), torch.zeros(LARGE)])


def test_when_the_arena_is_full_arrays_go_inline(codecs):
    local, remote = codecs
    value = [torch.full((1 << 15,), number) for number in range(5)]
    data = local.pack(value, "remote")
    assert (local.stats(), len(data) > 5 << 18) == (EMPTY, True)
    assert is_identical(remote.unpack(data, "local"), value)


def test_a_single_machine_has_no_store():
    alone = ArenaCodec(1 << 20, endpoint=HostEndpoint("", KEY, lambda _: True))
    data = alone.pack(torch.ones(LARGE), "remote")
    assert is_identical(alone.unpack(data, "local"), torch.ones(LARGE))
    other = codec("tcp")
    with pytest.raises(ReadFailed, match="is on another host, and this process has no endpoint"):
        alone.unpack(other.pack(torch.ones(LARGE), "remote"), "other", may_wait=True)
    other.close()
    alone.close()


def test_without_mooncake_it_uses_tcp(monkeypatch):
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "mooncake.engine", None)
        created = codec("")
        assert created._remote_arrays._store.name.startswith("tcp 127.0.0.1:")
        created.close()
        with pytest.raises(ImportError):
            codec("mooncake")
    pytest.importorskip("mooncake")
    created = codec("")
    assert created._remote_arrays._store.name.startswith("mooncake 127.0.0.1:")
    created.close()


def test_two_kinds_of_store_do_not_mix():
    pytest.importorskip("mooncake")
    local, remote = codec("tcp"), codec("mooncake", "127.0.0.2")
    fails(remote, local.pack(torch.ones(LARGE), "remote"), "uses the store 'tcp")
    local.close()
    remote.close()


def test_threads_can_fetch_concurrently(kind):
    local, remote = codec(kind, capacity=64 << 20), codec(kind, "127.0.0.2")
    values = [torch.randn(1 << 18) for _ in range(24)]
    waiting = [(value, local.pack(value, "remote")) for value in values]
    wrong = []

    def work():
        while True:
            try:
                value, data = waiting.pop()
            except IndexError:
                return
            if not is_identical(fetch(remote, data), value):
                wrong.append(value)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, local.stats()) == ([], EMPTY)
    local.close()
    remote.close()


# ---------------------------------------------------------------- what was given up
def test_a_value_is_read_once(codecs):
    local, remote = codecs
    data = local.pack(torch.ones(LARGE), "remote")
    fetch(remote, data)
    fails(remote, data, "already read or freed")


def test_freed_or_reused_slots_are_rejected(codecs):
    local, remote = codecs
    old = local.pack(torch.ones(LARGE), "remote")
    local.forget("remote")
    fails(remote, old, "already read or freed")
    new = local.pack(torch.zeros(LARGE), "remote")
    fails(remote, old, "already read or freed")
    assert _decode(old).remote_slot.slot == _decode(new).remote_slot.slot
    assert is_identical(fetch(remote, new), torch.zeros(LARGE)), "and the old one did not hurt the new one"


def test_a_slot_freed_during_the_read_is_rejected(codecs, kind, monkeypatch):
    local, remote = codecs
    data = local.pack(torch.ones(LARGE), "remote")
    if kind == "mooncake":
        move = mooncake.MooncakeStore._transfer

        def slow(store, *args):
            move(store, *args)
            local.forget("remote")

        monkeypatch.setattr(mooncake.MooncakeStore, "_transfer", slow)
    else:
        looks = []

        class Watched:
            """The serving side's memory, which loses the slot after it was first looked at."""

            view = local._arena.memory.view
            mark_read = local._arena.memory.mark_read

            def holds(self, *args):
                looks.append(local._arena.memory.holds(*args))
                local.forget("remote")
                return looks[-1]

        local._remote_arrays._store._memory = Watched()
    fails(remote, data, "already read or freed")
    if kind == "tcp":
        assert looks == [True, False]


@pytest.mark.parametrize("name", ["arena_address", "slot", "offset", "length", "generation"])
@pytest.mark.parametrize("change", [64, 1 << 40])
def test_an_invalid_descriptor_is_rejected(codecs, kind, name, change):
    if (kind, name) == ("tcp", "arena_address"):
        pytest.skip("not used by TCP")
    local, remote = codecs
    data = local.pack(torch.ones(LARGE), "remote")
    local.pack(torch.zeros(LARGE), "remote")
    fails(remote, changed(data, **{name: getattr(_decode(data).remote_slot, name) + change}))
    assert is_identical(fetch(remote, data), torch.ones(LARGE))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=3))
def test_corrupt_bytes_raise_read_failed_or_give_the_original_numbers(codecs, changes):
    local, remote = codecs
    data = bytearray(local.pack({"x": torch.full((LARGE,), 7, dtype=torch.int8)}, "remote"))
    address = _decode(bytes(data)).remote_slot.store.encode()
    where = range(data.index(address), data.index(address) + len(address))  # other programs listen at other ports
    for index, byte in changes:
        if index % len(data) not in where:
            data[index % len(data)] = byte
    try:
        value = fetch(remote, bytes(data))
    except ReadFailed:
        return
    finally:
        local.forget("remote")
    for array in value.values() if isinstance(value, dict) else ():
        if isinstance(array, torch.Tensor) and array.numel() and array.dtype is torch.int8:
            assert (array == 7).all()


# ---------------------------------------------------------------- targets
@pytest.mark.parametrize("target", ["127.0.0.3:1", "127.0.0.3", "nowhere:x", ""])
def test_a_wrong_target_fails_fast(codecs, kind, target):
    local, remote = codecs
    data = local.pack(torch.ones(LARGE), "remote")
    start = time.monotonic()
    fails(remote, changed(data, store=f"{kind} {target}"), "is unreachable")
    assert time.monotonic() - start < 2


def test_data_of_another_program_is_rejected(codecs, kind, monkeypatch):
    local, remote = codecs
    data = local.pack(torch.ones(LARGE), "remote")
    for module in (tcp, mooncake):
        monkeypatch.setattr(module, "TRANSFER_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.3", 0)) as other:

        def serve():
            for _ in range(3):
                try:
                    created, _ = other.accept()
                except OSError:
                    return
                with created:
                    created.settimeout(2)
                    try:
                        created.sendall(b"\1" * (5 * LARGE))
                        created.recv(1 << 16)
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        fails(remote, changed(data, store=f"{kind} 127.0.0.3:{other.getsockname()[1]}"), "is unreachable")
        other.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert is_identical(fetch(remote, data), torch.ones(LARGE))


def test_a_peer_without_the_key_can_neither_read_nor_serve():
    local, remote = codec("tcp"), codec("tcp", "127.0.0.2", key=b"x" * 32)
    data = local.pack(torch.ones(LARGE), "remote")
    fails(remote, data, "is unreachable")
    assert local.stats()["slots"] == 1, "not marked as read"
    remote.close()
    local.close()


def test_a_replayed_request_is_rejected():
    local, remote = codec("tcp"), codec("tcp", "127.0.0.2")
    data = local.pack(torch.ones(LARGE), "remote")
    slot = _decode(data).remote_slot
    connection = remote._remote_arrays._store._connect(slot.target)
    request = tcp._REQUEST.pack(1, 1, slot.slot, slot.offset, slot.length, slot.generation + 1)
    signed = request + connection.mac(request)
    connection.socket.sendall(signed)
    assert connection.receive(1 + 1 + 16)[:2] == b"\0\0", "no such generation"
    other = remote._remote_arrays._store._connect(slot.target)
    for again in (connection, other):
        again.socket.sendall(signed)
        with pytest.raises(OSError, match="closed"):
            again.receive(1)
        again.socket.close()
    assert local.stats()["slots"] == 1
    local.close()
    remote.close()


def test_a_silent_target_times_out(codecs, kind, monkeypatch):
    local, remote = codecs
    for module in (tcp, mooncake):
        monkeypatch.setattr(module, "TRANSFER_TIMEOUT_S", 0.3)
    data = local.pack(torch.ones(LARGE), "remote")
    with socket.create_server(("127.0.0.3", 0)) as silent:
        start = time.monotonic()
        fails(remote, changed(data, store=f"{kind} 127.0.0.3:{silent.getsockname()[1]}"), "is unreachable")
        assert time.monotonic() - start < 4


# ---------------------------------------------------------------- another process
PEER_SCRIPT = """
import sys, torch
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.transfer.codec import ArenaCodec
codec = ArenaCodec(8 << 20, endpoint=HostEndpoint("127.0.0.2", bytes(range(32)), lambda _: False, sys.argv[1]))
for line in sys.stdin:
    value = torch.ones(1 << 18) if line == "give\\n" else codec.unpack(bytes.fromhex(line), "tests", may_wait=True)
    print(codec.pack(value, "tests").hex(), flush=True)
"""


class Peer:
    """Another process, standing in for another host."""

    def __init__(self, kind, before=""):
        command = [sys.executable, "-c", before + PEER_SCRIPT, kind]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    def send(self, command):
        self.process.stdin.write(command + "\n")
        return bytes.fromhex(self.process.stdout.readline())

    def kill(self):
        """Kill it. Returns its stderr."""
        self.process.kill()
        return self.process.communicate()[1]


def test_values_cross_processes_and_the_terminal_stays_clean(kind):
    local, peer = codec(kind), Peer(kind)
    value = [torch.randn(LARGE), np.arange(LARGE)]
    assert is_identical(fetch(local, peer.send(local.pack(value, "peer").hex()), "peer"), value)
    assert local.stats() == EMPTY
    local.close()
    assert peer.kill() == ""


def test_a_killed_peer_is_detected_and_its_successor_is_readable(kind, capfd):
    local, peer = codec(kind), Peer(kind)
    assert is_identical(fetch(local, peer.send("give"), "peer"), torch.ones(1 << 18))
    unread = peer.send("give")
    peer.kill()
    start = time.monotonic()
    fails(local, unread, "is unreachable")
    assert time.monotonic() - start < 5
    local.forget("peer")
    successor = Peer(kind)
    assert is_identical(fetch(local, successor.send("give"), "peer"), torch.ones(1 << 18))
    successor.kill()
    local.close()
    assert capfd.readouterr() == ("", "")


PORT_SETUP = """
import os
os.environ["MC_MIN_RPC_PORT"], os.environ["MC_MAX_RPC_PORT"] = "16993", "16999"
"""


@pytest.mark.nightly
@pytest.mark.timeout(150)
def test_a_new_incarnation_at_the_same_port_is_readable():
    pytest.importorskip("mooncake")
    local, peer = codec("mooncake"), Peer("mooncake", PORT_SETUP)
    data = peer.send("give")
    target = _decode(data).remote_slot.target
    assert is_identical(fetch(local, data, "peer"), torch.ones(1 << 18))
    peer.kill()
    local.forget("peer")
    time.sleep(62)  # TIME_WAIT: the kernel does not reuse the port earlier
    for _ in range(60):
        peer = Peer("mooncake", PORT_SETUP)
        data = peer.send("give")
        if _decode(data).remote_slot.target == target:
            break
        peer.kill()
    assert _decode(data).remote_slot.target == target
    assert is_identical(fetch(local, data, "peer"), torch.ones(1 << 18))
    peer.kill()
    local.close()


def test_unread_slots_are_freed_when_their_owner_answers_again(codecs, monkeypatch):
    local, remote = codecs
    lost, unread = local.pack(torch.ones(LARGE), "remote"), local.pack(torch.zeros(LARGE), "remote")
    store = remote._remote_arrays._store
    with monkeypatch.context() as broken:
        broken.setattr(type(store), "read", lambda *_: (_ for _ in ()).throw(tcp.PeerUnreachable("cut off")))
        fails(remote, lost, "cut off")
    assert local.stats()["slots"] == 2
    assert is_identical(fetch(remote, unread), torch.zeros(LARGE))
    assert local.stats() == EMPTY


# ---------------------------------------------------------------- leaks
def test_close_leaks_nothing(kind):
    """A leak grows with every run; threads and files of earlier tests come and go, but not with every run."""

    def open_resources():
        gc.collect()
        return np.array([len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")])

    def once():
        local, remote = codec(kind), codec(kind, "127.0.0.2")
        for _ in range(3):
            fetch(remote, local.pack(torch.ones(LARGE), "remote"))
        local.pack(torch.ones(LARGE), "remote")
        local.forget("remote")
        remote.forget("local")
        assert (local.stats(), remote._remote_arrays.buffers_in_use()) == (EMPTY, 0)
        local.close()
        remote.close()

    once()  # the library keeps some of its threads
    time.sleep(0.2)
    before, runs = open_resources(), 6
    for _ in range(runs):
        once()
    deadline = time.monotonic() + 5
    while (growth := open_resources() - before).max() >= runs and time.monotonic() < deadline:
        time.sleep(0.05)
    assert growth.max() < runs, f"{growth} open files and threads more after {runs} runs"


def test_buffers_are_reused_after_garbage_collection(codecs):
    local, remote = codecs
    first = fetch(remote, local.pack([torch.ones(LARGE), np.ones(LARGE)], "remote"))
    address = first[0].data_ptr()
    view = first[1][5:]
    del first
    second = fetch(remote, local.pack(torch.zeros(LARGE), "remote"))
    assert remote._remote_arrays.buffers_in_use() == 2, "a part of it is still in use"
    assert second.data_ptr() != address
    assert (view == 1).all()
    del view
    third = fetch(remote, local.pack(torch.zeros(LARGE), "remote"))
    assert third.data_ptr() == address
    remote._remote_arrays.close()
    assert not third.any(), "arrays outlive their store"
    remote._remote_arrays = None


@pytest.mark.slow
def test_latency(kind, record_property):
    local, remote = codec(kind, capacity=64 << 20), codec(kind, "127.0.0.2")
    for name, value, limit in (("64 KB", torch.randn(1 << 14), 5e-3), ("8 MB", torch.randn(1 << 21), 60e-3)):
        seconds = []
        for _ in range(30):
            data = local.pack(value, "remote")
            start = time.perf_counter()
            fetch(remote, data)
            seconds.append(time.perf_counter() - start)
        record_property(name, statistics.median(seconds))
        assert statistics.median(seconds) < limit, "several times the duration on an idle machine"
    local.close()
    remote.close()
