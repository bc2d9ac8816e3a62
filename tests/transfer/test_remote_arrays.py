"""Values reach other hosts whole, by either store; what was given up is never data, and nothing is left behind."""

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
NOTHING = {"slots": 0, "slot_bytes": 0}
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
    made = codec(kind), codec(kind, "127.0.0.2")
    for one in made:
        one._arena._poison = True
    yield made
    for one in made:
        one.close()


def fetch(reader, data, sender="here"):
    return reader.unpack(data, sender, may_wait=True)


def fails(reader, data, why=""):
    with pytest.raises(ReadFailed, match=rf"{why}[\s\S]*\n  fix: "):
        fetch(reader, data)


def changed(data, **fields):
    """Packed bytes with another descriptor."""
    packed = _decode(data)
    return msgspec.msgpack.encode((packed.placed, packed.value, msgspec.structs.replace(packed.remote_slot, **fields)))


# ---------------------------------------------------------------- values
def test_values_of_all_kinds_are_the_same_there(codecs):
    here, there = codecs
    turned = torch.randn(300, 200).T
    value = {
        "small": torch.arange(3),
        "large": (torch.randn(100, 100), np.arange(LARGE), turned, turned[::3, 7:].to(torch.bfloat16)),
        "text": "x",
        "more": Plain([np.float32(2), None, 1 << 70], [b"x" * 40_000]),
        "odd": torch.arange(LARGE + 3, dtype=torch.uint8),
    }
    data = here.pack(value, "there")
    assert here.stats()["slots"] == 1, "all arrays lie together"
    back = fetch(there, data)
    assert list(back) == list(value)
    assert is_identical([*back.values()], [*value.values()])
    assert here.stats() == NOTHING
    back["large"][0][:] = 0
    back["large"][1][:] = 0
    assert is_identical(back["odd"], value["odd"]), "they do not overlap"


def test_only_large_arrays_need_a_store(codecs):
    here, there = codecs
    assert is_identical(there.unpack(here.pack([torch.arange(3), "x"], "there"), "here"), [torch.arange(3), "x"])


def test_who_may_not_wait_is_told_that_it_is_not_here_and_nothing_is_lost(codecs):
    here, there = codecs
    data = here.pack(torch.ones(LARGE), "there")
    for _ in range(2):
        with pytest.raises(WouldBlock):
            there.unpack(data, "here")
    assert is_identical(fetch(there, data), torch.ones(LARGE))


def test_peers_on_one_host_still_share_memory(codecs):
    here, there = codecs
    data = here.pack([torch.ones(LARGE), torch.zeros(LARGE)], "neighbour")
    assert here.stats()["slots"] == 2
    assert is_identical(there.unpack(data, "here"), [torch.ones(LARGE), torch.zeros(LARGE)])


def test_when_the_arena_is_full_arrays_go_inline(codecs):
    here, there = codecs
    value = [torch.full((1 << 15,), number) for number in range(5)]
    data = here.pack(value, "there")
    assert (here.stats(), len(data) > 5 << 18) == (NOTHING, True)
    assert is_identical(there.unpack(data, "here"), value)


def test_a_single_machine_has_no_store():
    alone = ArenaCodec(1 << 20, endpoint=HostEndpoint("", KEY, lambda _: True))
    data = alone.pack(torch.ones(LARGE), "there")
    assert is_identical(alone.unpack(data, "here"), torch.ones(LARGE))
    other = codec("tcp")
    with pytest.raises(ReadFailed, match="is on another host, and this process has no endpoint"):
        alone.unpack(other.pack(torch.ones(LARGE), "there"), "other", may_wait=True)
    other.close()
    alone.close()


def test_without_mooncake_there_are_plain_connections(monkeypatch):
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "mooncake.engine", None)
        made = codec("")
        assert made._remote_arrays._store.name.startswith("tcp 127.0.0.1:")
        made.close()
        with pytest.raises(ImportError):
            codec("mooncake")
    pytest.importorskip("mooncake")
    made = codec("")
    assert made._remote_arrays._store.name.startswith("mooncake 127.0.0.1:")
    made.close()


def test_two_kinds_of_store_do_not_mix():
    pytest.importorskip("mooncake")
    here, there = codec("tcp"), codec("mooncake", "127.0.0.2")
    fails(there, here.pack(torch.ones(LARGE), "there"), "uses the store 'tcp")
    here.close()
    there.close()


def test_many_threads_may_fetch_at_the_same_time(kind):
    here, there = codec(kind, capacity=64 << 20), codec(kind, "127.0.0.2")
    values = [torch.randn(1 << 18) for _ in range(24)]
    waiting = [(value, here.pack(value, "there")) for value in values]
    wrong = []

    def work():
        while True:
            try:
                value, data = waiting.pop()
            except IndexError:
                return
            if not is_identical(fetch(there, data), value):
                wrong.append(value)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, here.stats()) == ([], NOTHING)
    here.close()
    there.close()


# ---------------------------------------------------------------- what was given up
def test_a_value_is_read_once(codecs):
    here, there = codecs
    data = here.pack(torch.ones(LARGE), "there")
    fetch(there, data)
    fails(there, data, "read before, or given up")


def test_what_was_given_up_or_used_again_is_never_data(codecs):
    here, there = codecs
    old = here.pack(torch.ones(LARGE), "there")
    here.forget("there")
    fails(there, old, "read before, or given up")
    new = here.pack(torch.zeros(LARGE), "there")
    fails(there, old, "read before, or given up")
    assert _decode(old).remote_slot.slot == _decode(new).remote_slot.slot
    assert is_identical(fetch(there, new), torch.zeros(LARGE)), "and the old one did not hurt the new one"


def test_what_is_given_up_while_it_is_read_is_refused(codecs, kind, monkeypatch):
    here, there = codecs
    data = here.pack(torch.ones(LARGE), "there")
    if kind == "mooncake":
        move = mooncake.MooncakeStore._transfer

        def slow(store, *args):
            move(store, *args)
            here.forget("there")

        monkeypatch.setattr(mooncake.MooncakeStore, "_transfer", slow)
    else:
        looks = []

        class Watched:
            """The serving side's memory, which loses the slot after it was first looked at."""

            view = here._arena.memory.view
            mark_read = here._arena.memory.mark_read

            def holds(self, *args):
                looks.append(here._arena.memory.holds(*args))
                here.forget("there")
                return looks[-1]

        here._remote_arrays._store._memory = Watched()
    fails(there, data, "read before, or given up")
    if kind == "tcp":
        assert looks == [True, False]


@pytest.mark.parametrize("name", ["arena_address", "slot", "offset", "length", "generation"])
@pytest.mark.parametrize("change", [64, 1 << 40])
def test_a_descriptor_that_was_not_given_is_refused(codecs, kind, name, change):
    if (kind, name) == ("tcp", "arena_address"):
        pytest.skip("it is not used there")
    here, there = codecs
    data = here.pack(torch.ones(LARGE), "there")
    here.pack(torch.zeros(LARGE), "there")
    fails(there, changed(data, **{name: getattr(_decode(data).remote_slot, name) + change}))
    assert is_identical(fetch(there, data), torch.ones(LARGE))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_bytes_give_a_declared_error_or_the_numbers_that_were_sent(codecs, changes):
    here, there = codecs
    data = bytearray(here.pack({"x": torch.full((LARGE,), 7, dtype=torch.int8)}, "there"))
    address = _decode(bytes(data)).remote_slot.store.encode()
    where = range(data.index(address), data.index(address) + len(address))  # others listen there
    for at, byte in changes:
        if at % len(data) not in where:
            data[at % len(data)] = byte
    try:
        value = fetch(there, bytes(data))
    except ReadFailed:
        return
    finally:
        here.forget("there")
    for found in value.values() if isinstance(value, dict) else ():
        if isinstance(found, torch.Tensor) and found.numel() and found.dtype is torch.int8:
            assert (found == 7).all()


# ---------------------------------------------------------------- targets
@pytest.mark.parametrize("target", ["127.0.0.3:1", "127.0.0.3", "nowhere:x", ""])
def test_a_wrong_target_is_refused_at_once(codecs, kind, target):
    here, there = codecs
    data = here.pack(torch.ones(LARGE), "there")
    begun = time.monotonic()
    fails(there, changed(data, store=f"{kind} {target}"), "is unreachable")
    assert time.monotonic() - begun < 2


def test_another_program_at_that_address_is_never_data(codecs, kind, monkeypatch):
    here, there = codecs
    data = here.pack(torch.ones(LARGE), "there")
    for module in (tcp, mooncake):
        monkeypatch.setattr(module, "TRANSFER_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.3", 0)) as other:

        def serve():
            for _ in range(3):
                try:
                    made, _ = other.accept()
                except OSError:
                    return
                with made:
                    made.settimeout(2)
                    try:
                        made.sendall(b"\1" * (5 * LARGE))
                        made.recv(1 << 16)
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        fails(there, changed(data, store=f"{kind} 127.0.0.3:{other.getsockname()[1]}"), "is unreachable")
        other.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert is_identical(fetch(there, data), torch.ones(LARGE))


def test_who_does_not_have_the_key_gets_nothing_and_gives_nothing():
    here, there = codec("tcp"), codec("tcp", "127.0.0.2", key=b"x" * 32)
    data = here.pack(torch.ones(LARGE), "there")
    fails(there, data, "is unreachable")
    assert here.stats()["slots"] == 1, "it has marked nothing"
    there.close()
    here.close()


def test_a_request_that_was_overheard_is_worth_nothing():
    here, there = codec("tcp"), codec("tcp", "127.0.0.2")
    data = here.pack(torch.ones(LARGE), "there")
    far = _decode(data).remote_slot
    line = there._remote_arrays._store._connect(far.target)
    request = tcp._REQUEST.pack(1, 1, far.slot, far.offset, far.length, far.generation + 1)
    sealed = request + line.mac(request)
    line.socket.sendall(sealed)
    assert line.receive(1 + 1 + 16)[:2] == b"\0\0", "there is no such thing"
    other = there._remote_arrays._store._connect(far.target)
    for again in (line, other):
        again.socket.sendall(sealed)
        with pytest.raises(OSError, match="closed"):
            again.receive(1)
        again.socket.close()
    assert here.stats()["slots"] == 1
    here.close()
    there.close()


def test_a_silent_target_does_not_hold_a_thread_for_long(codecs, kind, monkeypatch):
    here, there = codecs
    for module in (tcp, mooncake):
        monkeypatch.setattr(module, "TRANSFER_TIMEOUT_S", 0.3)
    data = here.pack(torch.ones(LARGE), "there")
    with socket.create_server(("127.0.0.3", 0)) as silent:
        begun = time.monotonic()
        fails(there, changed(data, store=f"{kind} 127.0.0.3:{silent.getsockname()[1]}"), "is unreachable")
        assert time.monotonic() - begun < 4


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
    """Another process, as if on another host."""

    def __init__(self, kind, before=""):
        command = [sys.executable, "-c", before + PEER_SCRIPT, kind]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        return bytes.fromhex(self.process.stdout.readline())

    def kill(self):
        """End it; what it has written to the terminal."""
        self.process.kill()
        return self.process.communicate()[1]


def test_values_cross_processes_and_the_terminal_stays_clean(kind):
    here, peer = codec(kind), Peer(kind)
    value = [torch.randn(LARGE), np.arange(LARGE)]
    assert is_identical(fetch(here, peer.ask(here.pack(value, "peer").hex()), "peer"), value)
    assert here.stats() == NOTHING
    here.close()
    assert peer.kill() == ""


def test_a_peer_that_was_killed_is_noticed_and_its_successor_is_read(kind, capfd):
    here, peer = codec(kind), Peer(kind)
    assert is_identical(fetch(here, peer.ask("give"), "peer"), torch.ones(1 << 18))
    held = peer.ask("give")
    peer.kill()
    begun = time.monotonic()
    fails(here, held, "is unreachable")
    assert time.monotonic() - begun < 5
    here.forget("peer")
    successor = Peer(kind)
    assert is_identical(fetch(here, successor.ask("give"), "peer"), torch.ones(1 << 18))
    successor.kill()
    here.close()
    assert capfd.readouterr() == ("", "")


PORT_SETUP = """
import os
os.environ["MC_MIN_RPC_PORT"], os.environ["MC_MAX_RPC_PORT"] = "16993", "16999"
"""


@pytest.mark.nightly
@pytest.mark.timeout(150)
def test_a_new_incarnation_at_the_same_port_is_read():
    pytest.importorskip("mooncake")
    here, peer = codec("mooncake"), Peer("mooncake", PORT_SETUP)
    data = peer.ask("give")
    target = _decode(data).remote_slot.target
    assert is_identical(fetch(here, data, "peer"), torch.ones(1 << 18))
    peer.kill()
    here.forget("peer")
    time.sleep(62)  # so long the kernel gives the port to nobody
    for _ in range(60):
        peer = Peer("mooncake", PORT_SETUP)
        data = peer.ask("give")
        if _decode(data).remote_slot.target == target:
            break
        peer.kill()
    assert _decode(data).remote_slot.target == target
    assert is_identical(fetch(here, data, "peer"), torch.ones(1 << 18))
    peer.kill()
    here.close()


def test_what_could_not_be_read_is_freed_when_its_owner_answers_again(codecs, monkeypatch):
    here, there = codecs
    lost, kept = here.pack(torch.ones(LARGE), "there"), here.pack(torch.zeros(LARGE), "there")
    store = there._remote_arrays._store
    with monkeypatch.context() as broken:
        broken.setattr(type(store), "read", lambda *_: (_ for _ in ()).throw(tcp.PeerUnreachable("cut off")))
        fails(there, lost, "cut off")
    assert here.stats()["slots"] == 2
    assert is_identical(fetch(there, kept), torch.zeros(LARGE))
    assert here.stats() == NOTHING


# ---------------------------------------------------------------- nothing is left
def test_nothing_is_left_when_all_are_closed(kind):
    def things():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def once():
        here, there = codec(kind), codec(kind, "127.0.0.2")
        for _ in range(3):
            fetch(there, here.pack(torch.ones(LARGE), "there"))
        here.pack(torch.ones(LARGE), "there")
        here.forget("there")
        there.forget("here")
        assert here.stats() == NOTHING
        assert there._remote_arrays.buffers_in_use() == 0
        here.close()
        there.close()

    once()  # a library keeps some of its threads for good
    time.sleep(0.2)
    before = things()
    for _ in range(3):
        once()
    deadline = time.monotonic() + 5
    while things() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert things() <= before


def test_memory_is_used_again_only_when_its_arrays_are_garbage(codecs):
    here, there = codecs
    first = fetch(there, here.pack([torch.ones(LARGE), np.ones(LARGE)], "there"))
    address = first[0].data_ptr()
    view = first[1][5:]
    del first
    second = fetch(there, here.pack(torch.zeros(LARGE), "there"))
    assert there._remote_arrays.buffers_in_use() == 2, "a part of it is still in use"
    assert second.data_ptr() != address
    assert (view == 1).all()
    del view
    third = fetch(there, here.pack(torch.zeros(LARGE), "there"))
    assert third.data_ptr() == address
    there._remote_arrays.close()
    assert not third.any(), "arrays outlive their store"
    there._remote_arrays = None


@pytest.mark.slow
def test_how_long_it_takes(kind, record_property):
    here, there = codec(kind, capacity=64 << 20), codec(kind, "127.0.0.2")
    for name, value, limit in (("64 KB", torch.randn(1 << 14), 5e-3), ("8 MB", torch.randn(1 << 21), 60e-3)):
        taken = []
        for _ in range(30):
            data = here.pack(value, "there")
            start = time.perf_counter()
            fetch(there, data)
            taken.append(time.perf_counter() - start)
        record_property(name, statistics.median(taken))
        assert statistics.median(taken) < limit, "several times what it takes on an idle machine"
    here.close()
    there.close()
