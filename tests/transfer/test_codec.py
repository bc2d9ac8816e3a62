"""Values cross processes whole, large arrays through shared memory; nothing is kept once it was read or has failed."""

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
NOTHING = {"slots": 0, "slot_bytes": 0}


@pytest.fixture
def codecs():
    made = ArenaCodec(1 << 20), ArenaCodec(1 << 20)
    yield made
    for codec in made:
        codec.close()


def test_large_arrays_go_through_the_arena_and_small_ones_inline(codecs):
    here, there = codecs
    value = {"small": torch.arange(3), "large": (torch.randn(100, 100), np.arange(LARGE)), "text": "x"}
    data = here.pack(value, "there")
    assert len(data) < 500
    assert here.stats() == {"slots": 2, "slot_bytes": 40_000 + 8 * LARGE}
    back = there.unpack(data, "here")
    assert (back["text"], is_identical(back["small"], value["small"]), is_identical(back["large"], value["large"])) == (
        "x",
        True,
        True,
    )
    back["large"][0][:] = 0
    assert here.stats() == NOTHING


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int8])
def test_layouts_and_dtypes(codecs, dtype):
    here, there = codecs
    value = torch.randint(0, 2, (400, 300)).to(dtype)
    for each in (value, value.T, value[::2, 5:], value.flatten()[::3]):
        assert is_identical(there.unpack(here.pack(each, "there"), "here"), each)
    turned = value.view(torch.uint8).numpy()[::-1, ::-2]
    assert is_identical(there.unpack(here.pack(turned, "there"), "here"), turned)


def test_when_the_arena_is_full_arrays_go_inline(codecs):
    here, there = codecs
    value = [torch.full((1 << 15,), number) for number in range(8)]
    data = here.pack(value, "there")
    assert (here.stats()["slots"], len(data) > 4 << 18) == (4, True)
    assert is_identical(there.unpack(data, "here"), value)
    assert here.stats() == NOTHING


def test_a_value_that_cannot_be_sent_leaves_nothing_behind(codecs):
    here, _ = codecs
    with pytest.raises(NotSerializable):
        here.pack([torch.zeros(LARGE), object()], "there")
    assert here.stats() == NOTHING


def test_a_value_that_cannot_be_built_is_freed_all_the_same(codecs):
    here, there = codecs
    data = here.pack([Plain(1), torch.zeros(LARGE), torch.ones(LARGE)], "there")
    with pytest.raises(ReadFailed, match=r"has no dataclass 'tests[.]transfer[.]kinds:Plane'"):
        there.unpack(data.replace(b"kinds:Plain", b"kinds:Plane"), "here")
    assert here.stats() == NOTHING


def test_of_a_value_that_is_partly_gone_the_rest_is_freed(codecs):
    here, there = codecs
    data = here.pack([torch.zeros(LARGE), torch.ones(LARGE)], "there")
    here._arena.cancel(next(iter(here._arena._used.values())).descriptor)
    with pytest.raises(ReadFailed, match="read before, or given up"):
        there.unpack(data, "here")
    assert here.stats() == NOTHING


def test_a_dead_incarnation_is_removed(codecs):
    here, there = codecs
    lost, kept = here.pack(torch.zeros(LARGE), "there.1"), here.pack(torch.ones(LARGE), "there.2")
    here.forget("there.1")
    there.forget("here")  # it has not even spoken yet
    assert here.stats()["slots"] == 1
    with pytest.raises(ReadFailed):
        there.unpack(lost, "here")
    assert is_identical(there.unpack(kept, "here"), torch.ones(LARGE))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.integers(0, 200))
def test_damaged_bytes_give_a_declared_error_or_the_numbers_that_were_sent(changes, end):
    here, there = ArenaCodec(1 << 20), ArenaCodec(1 << 16)
    data = bytearray(here.pack({"x": torch.full((LARGE,), 7, dtype=torch.int8)}, "there"))
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        value = there.unpack(bytes(data[: end or None]), "here")
    except ReadFailed:
        return
    finally:
        here.close()
        there.close()
    for found in value.values() if isinstance(value, dict) else ():
        if isinstance(found, torch.Tensor) and found.numel() and found.dtype is torch.int8:
            assert (found == 7).all()


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
    made = subprocess.Popen(
        [sys.executable, "-c", PEER_SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    yield made
    made.kill()
    made.communicate()


def test_another_process_gives_back_what_it_was_given(codecs, peer):
    here, _ = codecs
    value = [{"a": np.arange(LARGE), "b": [b"x", None, (1.5, 1 << 70)]}, np.float32(2)]
    peer.stdin.write(here.pack(value, "peer").hex() + "\n")
    back = here.unpack(bytes.fromhex(peer.stdout.readline()), "peer")
    assert is_identical(back[0]["a"], value[0]["a"])
    assert (back[0]["b"], back[1]) == (value[0]["b"], value[1])
    assert here.stats() == NOTHING


@pytest.mark.slow
def test_how_long_it_takes(record_property):
    here, there = ArenaCodec(), ArenaCodec()
    for name, value, limit in (("a token", torch.tensor([7]), 60e-6), ("1 MB", torch.randn(1 << 18), 1.5e-3)):
        taken = []
        for _ in range(200):
            start = time.perf_counter()
            there.unpack(here.pack(value, "there"), "here")
            taken.append(time.perf_counter() - start)
        record_property(name, statistics.median(taken))
        assert statistics.median(taken) < limit, "several times what it takes on an idle machine"
    here.close()
    there.close()
