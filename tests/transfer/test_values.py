"""Serialization of values: bit-exact round trips, unsupported types, and corrupt bytes."""

import contextlib
import dataclasses
import hashlib
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec.msgpack import Ext, encode

from mstar.errors import NotSerializable, ReadFailed
from mstar.testing.parity import is_identical
from mstar.transfer.arrays import _TORCH_DTYPES, LARGE_ARRAY_BYTES
from mstar.transfer.values import pack, unpack
from tests.transfer.kinds import Bits, Colour, Frozen, Listed, Number, Plain


def is_same(a, b):
    """Bit-exact equality, with the same types at all levels."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return is_same(list(a.items()), list(b.items()))  # in the same order
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(is_same(item, other) for other in b) for item in a)
    if dataclasses.is_dataclass(a):
        return all(is_same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a))
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(bits(a), bits(b))
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return is_identical(a, b)


def bits(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


DTYPES = [getattr(torch, name) for name in _TORCH_DTYPES if hasattr(torch, name) and name != "complex32"]
"""torch warns that complex32 is experimental."""


def tensors(dtype, shape, step):
    """Random bits in any layout: strided, transposed, empty, zero-dimensional."""
    count = int(np.prod(shape)) * dtype.itemsize * step
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (max(count, 16),), dtype=torch.uint8)[:count]
    flat = bits.view(dtype) if count else torch.empty(0, dtype=dtype)
    return flat.reshape(*shape[:-1], -1)[..., ::step].T if len(shape) == 2 and count else flat[::step].reshape(shape)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
some_tensors = st.builds(tensors, st.sampled_from(DTYPES), shapes, st.integers(1, 3))
dtypes = st.one_of(
    arrays.scalar_dtypes(),
    arrays.datetime64_dtypes(),
    arrays.timedelta64_dtypes(),
    arrays.unicode_string_dtypes(),
    arrays.byte_string_dtypes(),
)
some_arrays = arrays.arrays(dtypes, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
scalars = dtypes.flatmap(lambda dtype: arrays.arrays(dtype, ())).map(lambda array: array[()])
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 80), 1 << 80),
    st.floats(),
    st.text(st.characters()),
    st.binary(),
    st.sampled_from([*Colour, *Number, *Bits, Bits.A | Bits.C, Bits(0)]),
)
keys = st.recursive(hashable, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
values = st.recursive(
    hashable | some_tensors | some_arrays | scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.sets(keys, max_size=3),
        st.builds(Plain, inner, st.lists(inner, max_size=2)),
        st.builds(Frozen, inner),
        st.builds(Frozen.Inner, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(values)
@example([1 << 63, -(1 << 63), 1 << 64, -(1 << 63) - 1, -128, 0])
@example({"a": 1, "ä": 2, "\ud800": "\udfff"})
@example([np.float64(-0.0), -0.0, float("nan"), True, 1, 1.0])
def test_any_value_round_trips(value):
    packed = pack(value)
    assert is_same(unpack(packed), value)
    assert is_same(unpack(memoryview(packed)), value)
    assert pack(unpack(packed)) == packed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_torch(dtype):
    for value in (tensors(dtype, (), 1), tensors(dtype, (2, 3), 2), tensors(dtype, (0, 3), 1)):
        assert is_same(unpack(pack(value)), value)


def test_arrays_own_memory_that_can_be_written_to():
    for value in (torch.arange(5), np.arange(5.0), torch.zeros(3, dtype=torch.bfloat16)):
        packed = bytearray(pack([b"x", value]))  # unaligned
        back = unpack(memoryview(packed))[1]
        packed[:] = bytes(len(packed))
        assert is_identical(back, value)
        assert (back.data_ptr() if isinstance(back, torch.Tensor) else back.ctypes.data) % 16 == 0
        back += 1
        assert is_identical(back, value + 1)


def test_lazy_tensors_are_resolved():
    with_grad = torch.ones(2, requires_grad=True)
    conjugated = torch.tensor([1 + 2j]).conj()
    assert is_identical(unpack(pack(with_grad)), with_grad.detach())
    assert is_identical(unpack(pack(conjugated)), conjugated.resolve_conj())
    assert is_identical(unpack(pack(conjugated.imag)), conjugated.imag.resolve_neg())


def test_a_dataclass_is_restored_as_it_was_without_its_init():
    value = Frozen(1)
    object.__setattr__(value, "limit", -5)
    assert unpack(pack(value)) == value
    partly = object.__new__(Plain)
    partly.it = 3
    back = unpack(pack(partly))
    assert vars(back) == {"it": 3}


def test_large_arrays_are_placed_out_of_band():
    small, large = np.zeros(LARGE_ARRAY_BYTES - 1, np.uint8), torch.arange(LARGE_ARRAY_BYTES // 8).reshape(2, -1)
    placed = []

    def place(data):
        placed.append(bytearray(data))
        return len(placed) - 1

    packed = pack({"a": (small, large), "b": large.T}, place)
    assert ([len(data) for data in placed], len(packed) < 2 * LARGE_ARRAY_BYTES) == (
        [LARGE_ARRAY_BYTES, LARGE_ARRAY_BYTES],
        True,
    )
    assert is_same(unpack(packed, placed), {"a": (small, large), "b": large.T})
    assert is_same(unpack(pack([large], lambda _: None)), [large]), "inline if the arena is full"
    with pytest.raises(ReadFailed, match="cannot decode"):
        unpack(packed, placed[:1])


MAIN = """
import dataclasses
from mstar.errors import NotSerializable
from mstar.transfer.values import pack

@dataclasses.dataclass
class Own:
    it: int = 0

try:
    pack(Own())
except NotSerializable as error:
    print(error)
"""


def test_a_class_of_main_is_not_serializable():
    done = subprocess.run([sys.executable, "-c", MAIN], capture_output=True, check=True, text=True)
    assert done.stdout.startswith(
        "cannot send __main__:Own to another process: the class is not importable there\n  fix: define it"
    )


SENDER = """
import sys, hashlib
from mstar.transfer.values import pack
from tests.transfer.kinds import Bits, Colour, Plain
value = Plain({"a", "b", Colour.RED, 7, frozenset({1, "x"}), Bits.A | Bits.B}, [{(1, 2): b"x"}])
sys.stdout.buffer.write(pack(value))
assert "numpy" not in sys.modules and "torch" not in sys.modules
"""


def test_bytes_are_the_same_in_every_process_without_array_libraries():
    sent = [
        subprocess.run(
            [sys.executable, "-c", SENDER],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert sent[0] == sent[1]
    value = Plain({"a", "b", Colour.RED, 7, frozenset({1, "x"}), Bits.A | Bits.B}, [{(1, 2): b"x"}])
    assert hashlib.sha256(pack(value)).digest() == hashlib.sha256(sent[0]).digest()
    assert is_same(unpack(sent[0]), value)


# ---------------------------------------------------------------- unsupported values
def recursive_list():
    value = []
    value.append(value)
    return value


class Local:
    """A class that other processes cannot import."""


def local_dataclass():
    @dataclasses.dataclass
    class Inside:
        it: int = 0

    return Inside()


UNSENDABLE = {
    "an object": (object(), "cannot send a builtins.object"),
    "a class": (int, "cannot send a builtins.type"),
    "a function": (len, "cannot send a "),
    "an instance": (Local(), "cannot send a "),
    "a kind of dict": (OrderedDict(a=1), "cannot send a collections.OrderedDict"),
    "a kind of array": (np.ma.array([1, 2], mask=[True, False]), "cannot send a .*MaskedArray"),
    "a parameter": (torch.nn.Parameter(torch.ones(1)), "cannot send a .*Parameter"),
    "objects in an array": (np.array([None]), "cannot send an array of dtype object"),
    "records": (np.zeros(1, "i4,f4"), "cannot send an array of dtype"),
    "a sparse tensor": (torch.eye(2).to_sparse(), "cannot send a tensor of layout torch.sparse_coo on cpu"),
    "a tensor without data": (torch.empty(2, device="meta"), "cannot send a tensor of layout .* on meta"),
    "a local class": (local_dataclass(), "the class is not importable there"),
    "a dataclass that is a list": (Listed(1), "it has more state than its fields"),
    "a value that contains itself": (recursive_list(), "nested too deeply"),
}


@pytest.mark.parametrize(("value", "match"), UNSENDABLE.values(), ids=UNSENDABLE)
def test_unsupported_values_raise_not_serializable(value, match):
    with pytest.raises(NotSerializable, match=rf"{match}[\s\S]*\n  fix: \w"):
        pack([1, {"x": value}])


# ---------------------------------------------------------------- corrupt bytes
SENT = [
    pack(torch.arange(3)),
    pack({"a": [np.arange(4.0), np.float32(2), (1, 2, {3})], (1,): Colour.BLUE}),
    pack([Frozen({"x": b"yy", 5: 1 << 70}), Plain(Bits.A, ["\ud800", None, 1.5]), torch.zeros((2, 0))]),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(SENT),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    st.integers(0, 400),
)
def test_corrupt_bytes_give_a_value_or_read_failed(packed, changes, end):
    data = bytearray(packed)
    for index, byte in changes:
        data[index % len(data)] = byte
    with contextlib.suppress(ReadFailed):
        unpack(bytes(data[: end or None]))


@given(st.binary(max_size=60))
def test_random_bytes_give_a_value_or_read_failed(data):
    with contextlib.suppress(ReadFailed):
        unpack(data)


def renamed(value, name, other):
    return pack(value).replace(name.encode(), other.encode())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x91" * 5000 + b"\x01", "recursion"),
        (b"\xdd\xff\xff\xff\xff", "truncated"),
        (renamed(Frozen(1), "kinds:Frozen", "kinds:Number"), "has no dataclass"),
        (renamed(Plain(1), "kinds:Plain", "kindz:Plain"), "has no dataclass"),
        (renamed(Plain(1), "it", "at"), r"has no fields \['at'\]"),
        (renamed(Colour.RED, "kinds:Colour", "kinds:Frozen"), "has no enum"),
        (renamed(Colour.RED, "RED", "SAD"), "SAD"),
        (renamed(np.arange(3), "<i8", "|O8"), r"unknown array dtype 'n\|O8'"),
        (renamed(np.arange(3), "<i8", "<i4"), "24 bytes do not match an array of <i4"),
        (renamed(torch.arange(3), "int64", "load_"), "unknown array dtype 'tload_'"),
    ],
)
def test_forged_bytes_raise_read_failed(data, reason):
    with pytest.raises(ReadFailed, match=f"(?s){reason}.*\n  fix: "):
        unpack(data)


@pytest.mark.parametrize("name", ["antigravity:geohash", "antigravity:X", "os:path", "nothing", ":", "builtins:int"])
def test_decoding_imports_no_module(name):
    with pytest.raises(ReadFailed, match="has no dataclass"):
        unpack(encode(Ext(4, encode([name, {}]))))
    assert "antigravity" not in sys.modules


def test_numpy_only_decodes_tensors_as_arrays():
    for dtype in (torch.int64, torch.float16, torch.bool):
        back = unpack(pack(torch.ones(2, 3, dtype=dtype)), numpy_only=True)
        assert (type(back), back.shape, back.tolist()) == (np.ndarray, (2, 3), [[1] * 3] * 2)
    assert unpack(pack(torch.ones(2, dtype=torch.bfloat16)), numpy_only=True).dtype is torch.bfloat16
