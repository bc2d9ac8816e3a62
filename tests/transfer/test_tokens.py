"""The short path for tokens: the same bytes and values as the general one."""

from contextlib import closing

import numpy as np
import pytest
import torch

from mstar.testing.parity import is_identical
from mstar.transfer import values
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.tokens import TOKEN_SIZES, pack_token, unpack_token

TOKENS = [0, 1, -1, 50_000, (1 << 63) - 1, -(1 << 63)]


@pytest.mark.parametrize("number", TOKENS)
@pytest.mark.parametrize("numpy_only", [False, True])
def test_a_token_has_the_bytes_of_the_general_path(number, numpy_only):
    token = torch.tensor([number])
    packed = pack_token(token)
    assert packed == values.pack(token)
    assert len(packed) in TOKEN_SIZES
    expected = token.numpy() if numpy_only else token
    assert is_identical(values.unpack(packed, numpy_only=numpy_only), expected)
    assert is_identical(unpack_token(packed, numpy_only=numpy_only), expected)


@pytest.mark.parametrize("number", TOKENS)
@pytest.mark.parametrize("numpy_only", [False, True])
def test_a_token_in_a_numpy_array_stays_one(number, numpy_only):
    token = np.array([number], np.int64)
    packed = pack_token(token)
    assert packed == values.pack(token)
    assert len(packed) in TOKEN_SIZES
    assert is_identical(unpack_token(packed, numpy_only=numpy_only), token)


def test_an_unpacked_token_owns_memory_that_can_be_written_to():
    packed = bytearray(pack_token(torch.tensor([7])))
    token = unpack_token(packed, numpy_only=False)
    packed[:] = bytes(len(packed))
    token += 1
    assert token.tolist() == [8]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1, 2]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor(1),
        torch.tensor([[1]]),
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([1.0], dtype=torch.float64),
        torch.tensor([1], dtype=torch.uint64),
        np.array([1, 2]),
        np.array(1),
        np.array([1], np.int32),
        np.array([1], ">i8"),
        np.array([1.0]),
        1,
        [1],
    ],
    ids=str,
)
def test_other_values_are_not_tokens(value):
    assert pack_token(value) is None
    packed = values.pack(value)
    assert unpack_token(packed, numpy_only=False) is None
    with closing(ArenaCodec(1 << 16)) as codec:
        back = codec.unpack(codec.pack(value, "peer"), "peer")
    assert is_identical(back, value)


@pytest.mark.parametrize("number", TOKENS)
def test_a_codec_sends_tokens(number):
    token = torch.tensor([number])
    with closing(ArenaCodec(1 << 16)) as codec:
        data = codec.pack(token, "peer")
        assert is_identical(codec.unpack(data, "peer"), token)
        assert is_identical(codec.unpack(memoryview(data), "peer"), token)
