"""The msgpack scan finds the declared number of values without decoding them."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar.server.errors import ApiError
from mstar.server.http_exchange import MAX_JSON_VALUES
from mstar.server.inputs import msgpack_scan
from mstar.server.inputs.msgpack_scan import MAX_DEPTH, check_msgpack_value_count

ATOMS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
ATOMS |= st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=40))
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(), inner))


def error_of(content):
    """Status and code of the rejection, None if there is none."""
    try:
        asyncio.run(check_msgpack_value_count(content))
    except ApiError as error:
        return error.status, error.code
    return None


def is_accepted(content):
    return error_of(content) is None


def count_items(value):
    if isinstance(value, list):
        return len(value) + sum(map(count_items, value))
    if isinstance(value, dict):
        return len(value) + sum(map(count_items, value.values()))
    return 0


@given(VALUES)
def test_the_limit_is_the_number_of_items(value):
    content, count = msgspec.msgpack.encode(value), count_items(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msgpack_scan, "MAX_JSON_VALUES", count)
        assert is_accepted(content)
        if count:
            patch.setattr(msgpack_scan, "MAX_JSON_VALUES", count - 1)
            assert error_of(content) == (413, "too_many_values")


@pytest.mark.parametrize("code", [b"\xdd", b"\xdf"])
def test_a_declared_size_is_rejected_before_its_items(code):
    assert not is_accepted(code + (MAX_JSON_VALUES + 1).to_bytes(4, "big"))


def test_nested_lists_are_counted_together():
    assert not is_accepted(msgspec.msgpack.encode([[None] * 1000] * (MAX_JSON_VALUES // 1000 + 1)))


@pytest.mark.parametrize("item", [b"\x91", b"\x81\xa1k", b"\xdc\x00\x01"])
def test_deep_nesting_is_rejected_before_it_is_decoded(item):
    assert is_accepted(item * MAX_DEPTH + b"\xc0")
    assert error_of(item * (MAX_DEPTH + 1) + b"\xc0") == (400, "invalid_body")


def test_the_items_of_outer_lists_are_counted_after_an_inner_list():
    inner = msgspec.msgpack.encode([[None] * 3] * 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msgpack_scan, "MAX_JSON_VALUES", 41)
        assert is_accepted(b"\x91" + inner)
        assert error_of(b"\x92" + inner + b"\xc0") == (413, "too_many_values")


@given(st.binary(max_size=MAX_DEPTH))
def test_malformed_bytes_are_left_to_the_decoder(content):
    assert is_accepted(content) or any(code in content for code in (0xDC, 0xDD, 0xDE, 0xDF))


def test_other_tasks_run_during_a_long_scan():
    turns = 0

    async def main():
        async def count_turns():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count_turns())
        await check_msgpack_value_count(msgspec.msgpack.encode([None] * 200_000))
        counter.cancel()

    asyncio.run(main())
    assert turns >= 20
