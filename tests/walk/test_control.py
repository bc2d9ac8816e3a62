"""The eager meaning of loop, Stream, windows, each and choose."""

from __future__ import annotations

import numpy as np
import pytest

from mstar import Stream, choose, each, loop, windows


# ---------------------------------------------------------------- loop
def test_a_loop_carries_and_keeps_the_last():
    s = loop(steps=4, x=1)
    seen = []
    for step in s:
        seen.append((step, s.x))
        s.x = s.x * 2
    assert seen == [(0, 1), (1, 2), (2, 4), (3, 8)]
    assert s.x == 16


def test_a_loop_of_no_steps_keeps_the_first_and_collects_nothing():
    s = loop(steps=0, x=1)
    for _ in s:
        s.x = 2
        s.collect(y=s.x)
    assert s.x == 1
    assert s.y == []
    assert s.whatever == []


def test_steps_may_be_an_array_of_one_number():
    assert list(loop(steps=np.int64(3))) == [0, 1, 2]


def test_a_loop_ends_after_the_iteration_that_sets_a_flag():
    s = loop(steps=9, x=0)
    for _ in s:
        s.stop_when(s.x == 2)  # read before it is changed
        s.x = s.x + 1
    assert s.x == 3


@pytest.mark.parametrize(("first", "second", "expected"), [(2, 5, 3), (5, 2, 3), (9, 9, 7)])
def test_any_of_several_flags_ends_it(first, second, expected):
    s = loop(steps=7)
    ran = 0
    for step in s:
        s.stop_when(np.array([step == first]))
        s.stop_when(step == second)
        ran += 1
    assert ran == expected


def test_a_flag_is_forgotten_with_its_iteration():
    s = loop(steps=3)
    ran = 0
    for _ in s:
        s.stop_when(False)
        ran += 1
    assert ran == 3


def test_a_loop_collects_one_value_of_each_iteration():
    s = loop(steps=3)
    for step in s:
        s.collect(y=step * 10, z=-step)
    assert (s.y, s.z) == ([0, 10, 20], [0, -1, -2])


def test_collecting_twice_keeps_the_later():
    s = loop(steps=2)
    for step in s:
        s.collect(y=step)
        s.collect(y=step + 5)
    assert s.y == [5, 6]


def test_what_a_loop_does_not_carry():
    s = loop(steps=1, token=0, other=1)
    with pytest.raises(AttributeError) as caught:
        s.tokn  # noqa: B018
    assert str(caught.value) == (
        "this loop does not carry `tokn` (did you mean `token`?); it carries `token`, `other`\n"
        "  fix: loop(..., tokn=<initial value>)"
    )
    assert caught.value.name == "tokn"
    with pytest.raises(AttributeError, match="this loop does not carry `tokn`"):
        s.tokn = 3
    with pytest.raises(AttributeError, match="it carries nothing"):
        loop(steps=1).x  # noqa: B018


# ---------------------------------------------------------------- streams and windows
def test_a_stream_gives_its_items_and_then_the_default():
    stream = Stream("s")
    for item in "ab":
        stream.put(item)
    assert [stream.get(default="-") for _ in range(4)] == ["a", "b", "-", "-"]
    stream.put("c")
    assert stream.get(default="-") == "c"
    assert stream.items() == ["a", "b", "c"]


def test_get_and_windows_read_by_themselves():
    stream = filled(3)
    assert stream.get(default=-1) == 0
    assert list(windows(stream, size=3)) == [[0, 1, 2]]
    assert list(windows(stream, size=3)) == [[0, 1, 2]]


def filled(count):
    stream = Stream("s")
    for item in range(count):
        stream.put(item)
    return stream


WINDOWS = [
    # items, how, windows, fresh
    (0, {"size": 2}, [], []),
    (0, {"size": 2, "flush": True}, [], []),
    (1, {"size": 2}, [], []),
    (1, {"size": 2, "flush": True}, [[0]], [1]),
    (5, {"size": 2}, [[0, 1], [2, 3]], [2, 2]),
    (5, {"size": 2, "flush": True}, [[0, 1], [2, 3], [4]], [2, 2, 1]),
    (4, {"size": 2, "flush": True}, [[0, 1], [2, 3]], [2, 2]),
    # overlap
    (5, {"size": 3, "stride": 1}, [[0, 1, 2], [1, 2, 3], [2, 3, 4]], [3, 1, 1]),
    (6, {"size": 4, "stride": 3}, [[0, 1, 2, 3]], [4]),
    (6, {"size": 4, "stride": 3, "flush": True}, [[0, 1, 2, 3], [3, 4, 5]], [4, 2]),
    # context: up to this number of items before
    (6, {"size": 2, "context": 1}, [[0, 1], [1, 2, 3], [3, 4, 5]], [2, 2, 2]),
    (6, {"size": 2, "context": 3}, [[0, 1], [0, 1, 2, 3], [1, 2, 3, 4, 5]], [2, 2, 2]),
    (5, {"size": 2, "context": 2, "flush": True}, [[0, 1], [0, 1, 2, 3], [2, 3, 4]], [2, 2, 1]),
    (6, {"size": 4, "context": 1, "stride": 2}, [[0, 1, 2, 3], [1, 2, 3, 4, 5]], [4, 2]),
    # first: a smaller one to begin with
    (6, {"size": 4, "first": 1}, [[0], [1, 2, 3, 4]], [1, 4]),
    (6, {"size": 4, "first": 1, "flush": True}, [[0], [1, 2, 3, 4], [5]], [1, 4, 1]),
    (7, {"size": 4, "stride": 2, "first": 1}, [[0], [0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6]], [1, 2, 2, 2]),
    (3, {"size": 2, "first": 1, "context": 1}, [[0], [0, 1, 2]], [1, 2]),
]


@pytest.mark.parametrize(("count", "how", "expected", "fresh"), WINDOWS)
def test_the_windows_of_a_stream(count, how, expected, fresh):
    w = windows(filled(count), **how)
    got = [(window, w.fresh) for window in w]
    assert [window for window, _ in got] == expected
    assert [number for _, number in got] == fresh


@pytest.mark.parametrize("how", [how for _, how, _, _ in WINDOWS])
@pytest.mark.parametrize("count", range(9))
def test_fresh_items_make_the_stream_again(count, how):
    w = windows(filled(count), **how)
    seen = [item for window in w for item in window[len(window) - w.fresh :]]
    assert seen == [*range(len(seen))]
    if how.get("flush"):
        assert len(seen) == count
    else:
        stride = how.get("stride", how["size"])
        assert count - len(seen) < max(stride, how.get("first", how["size"]))


def test_windows_of_arrays_are_arrays():
    stream = Stream("s")
    for number in range(3):
        stream.put(np.array([number], np.int64))
    (window,) = windows(stream, size=3)
    assert window.dtype == np.int64
    assert window.tolist() == [[0], [1], [2]]


# ---------------------------------------------------------------- each
def test_each_collects_in_order():
    e = each(["a", "b", "c"])
    for item in e:
        e.collect(y=item * 2, at=e.index)
    assert (e.y, e.at) == (["aa", "bb", "cc"], [0, 1, 2])


def test_each_goes_along_the_first_axis_of_an_array():
    e = each(np.arange(6).reshape(3, 2))
    assert [item.tolist() for item in e] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("nothing", [[], np.zeros((0, 4))])
def test_each_of_nothing_collects_nothing(nothing):
    e = each(nothing)
    for item in e:
        e.collect(y=item)
    assert e.y == []


def test_what_each_does_not_collect():
    e = each([1])
    for item in e:
        e.collect(score=item)
    with pytest.raises(AttributeError) as caught:
        e.scores  # noqa: B018
    assert str(caught.value) == (
        "this each does not collect `scores` (did you mean `score`?); it collects `score`\n"
        "  fix: call e.collect(scores=...) in its body"
    )


# ---------------------------------------------------------------- choose
@pytest.mark.parametrize("flag", [True, False, np.array([True]), np.array(False)])
def test_only_the_chosen_arm_runs(flag):
    ran = []
    assert choose(flag, lambda: ran.append("then") or 1, lambda: ran.append("otherwise") or 2) == (1 if flag else 2)
    assert ran == (["then"] if flag else ["otherwise"])


def test_an_arm_may_be_a_value():
    assert choose(True, 1, 2) == 1
    assert choose(False, 1, lambda: 2) == 2
