"""Arena codec: round trips through shared memory, corrupt bytes, and leaks."""

import statistics
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar.errors import NotSerializable, ReadFailed
from mstar.testing.parity import is_identical
from mstar.transfer.codec import ArenaCodec
from tests.transfer.kinds import Plain

LARGE = 16 << 10
EMPTY = {"slots": 0, "slot_bytes": 0}


@pytest.fixture
def codecs():
    created = ArenaCodec(1 << 20), ArenaCodec(1 << 20)
    yield created
    for codec in created:
        codec.close()


def test_large_arrays_go_through_the_arena_and_small_ones_inline(codecs):
    local, remote = codecs
    value = {"small": torch.arange(3), "large": (torch.randn(100, 100), np.arange(LARGE)), "text": "x"}
    data = local.pack(value, "remote")
    assert len(data) < 500
    assert local.stats() == {"slots": 2, "slot_bytes": 40_000 + 8 * LARGE}
    back = remote.unpack(data, "local")
    assert (back["text"], is_identical(back["small"], value["small"]), is_identical(back["large"], value["large"])) == (
        "x",
        True,
        True,
    )
    back["large"][0][:] = 0
    assert local.stats() == EMPTY


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int8])
def test_layouts_and_dtypes(codecs, dtype):
    local, remote = codecs
    value = torch.randint(0, 2, (400, 300)).to(dtype)
    for each in (value, value.T, value[::2, 5:], value.flatten()[::3]):
        assert is_identical(remote.unpack(local.pack(each, "remote"), "local"), each)
    turned = value.view(torch.uint8).numpy()[::-1, ::-2]
    assert is_identical(remote.unpack(local.pack(turned, "remote"), "local"), turned)


def test_when_the_arena_is_full_arrays_go_inline(codecs):
    local, remote = codecs
    value = [torch.full((1 << 15,), number) for number in range(8)]
    data = local.pack(value, "remote")
    assert (local.stats()["slots"], len(data) > 4 << 18) == (4, True)
    assert is_identical(remote.unpack(data, "local"), value)
    assert local.stats() == EMPTY


def test_an_unserializable_value_leaks_nothing(codecs):
    local, _ = codecs
    with pytest.raises(NotSerializable):
        local.pack([torch.zeros(LARGE), object()], "remote")
    assert local.stats() == EMPTY


def test_a_value_that_fails_to_decode_is_freed(codecs):
    local, remote = codecs
    data = local.pack([Plain(1), torch.zeros(LARGE), torch.ones(LARGE)], "remote")
    with pytest.raises(ReadFailed, match=r"has no dataclass 'tests[.]transfer[.]kinds:Plane'"):
        remote.unpack(data.replace(b"kinds:Plain", b"kinds:Plane"), "local")
    assert local.stats() == EMPTY


def test_the_rest_of_a_partly_freed_value_is_freed(codecs):
    local, remote = codecs
    data = local.pack([torch.zeros(LARGE), torch.ones(LARGE)], "remote")
    local._arena.cancel(next(iter(local._arena._used.values())).descriptor)
    with pytest.raises(ReadFailed, match="already read or freed"):
        remote.unpack(data, "local")
    assert local.stats() == EMPTY


def test_a_dead_incarnation_is_removed(codecs):
    local, remote = codecs
    lost, unread = local.pack(torch.zeros(LARGE), "remote.1"), local.pack(torch.ones(LARGE), "remote.2")
    local.forget("remote.1")
    remote.forget("local")  # nothing was received from it yet
    assert local.stats()["slots"] == 1
    with pytest.raises(ReadFailed):
        remote.unpack(lost, "local")
    assert is_identical(remote.unpack(unread, "local"), torch.ones(LARGE))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.integers(0, 200))
def test_corrupt_bytes_raise_read_failed_or_give_the_original_numbers(changes, end):
    local, remote = ArenaCodec(1 << 20), ArenaCodec(1 << 16)
    data = bytearray(local.pack({"x": torch.full((LARGE,), 7, dtype=torch.int8)}, "remote"))
    for index, byte in changes:
        data[index % len(data)] = byte
    try:
        value = remote.unpack(bytes(data[: end or None]), "local")
    except ReadFailed:
        return
    finally:
        local.close()
        remote.close()
    for array in value.values() if isinstance(value, dict) else ():
        if isinstance(array, torch.Tensor) and array.numel() and array.dtype is torch.int8:
            assert (array == 7).all()


PEER_SCRIPT = """
import sys
from mstar.transfer.codec import ArenaCodec
codec = ArenaCodec()
for line in sys.stdin.buffer:
    value = codec.unpack(bytes.fromhex(line.decode()), "tests")
    sys.stdout.write(codec.pack(value, "tests").hex() + "\\n")
    sys.stdout.flush()
"""


@pytest.fixture
def peer():
    created = subprocess.Popen(
        [sys.executable, "-c", PEER_SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    yield created
    created.kill()
    created.communicate()


def test_values_round_trip_through_another_process(codecs, peer):
    local, _ = codecs
    value = [{"a": np.arange(LARGE), "b": [b"x", None, (1.5, 1 << 70)]}, np.float32(2)]
    peer.stdin.write(local.pack(value, "peer").hex() + "\n")
    back = local.unpack(bytes.fromhex(peer.stdout.readline()), "peer")
    assert is_identical(back[0]["a"], value[0]["a"])
    assert (back[0]["b"], back[1]) == (value[0]["b"], value[1])
    assert local.stats() == EMPTY


@pytest.mark.slow
def test_latency(record_property):
    local, remote = ArenaCodec(), ArenaCodec()
    for name, value, limit in (("a token", torch.tensor([7]), 60e-6), ("1 MB", torch.randn(1 << 18), 1.5e-3)):
        seconds = []
        for _ in range(200):
            start = time.perf_counter()
            remote.unpack(local.pack(value, "remote"), "local")
            seconds.append(time.perf_counter() - start)
        record_property(name, statistics.median(seconds))
        assert statistics.median(seconds) < limit, "several times the duration on an idle machine"
    local.close()
    remote.close()
