"""Joining calls into a batch and parting its results, with numpy and with torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mstar import (
    KV,
    ONE_ROW,
    Component,
    Float,
    Int64,
    Layout,
    State,
    Static,
    Tensor,
    View,
    alone,
    op,
    padded,
    ragged,
    rows,
    stacked,
)
from mstar.errors import BadShape, RowsFailed
from mstar.walk.values import concatenate, cut, is_array, is_finite, pad, split, stack

LIBRARIES = [np.array, torch.tensor]


class Sums(State):
    def __init__(self) -> None:
        self.total = 0


class Part(Component):
    """Ops that show what their body was given."""

    @op
    def one(self, x: Int64[Tensor, "N"], by: int = 2) -> Int64[Tensor, "N"]:
        return x * by

    @op(batch=stacked)
    def stack(self, x: Int64[Tensor, "N"], by: int, layout: Layout = ONE_ROW) -> tuple[Int64[Tensor, "N"], int]:
        assert x.shape[0] == layout.rows == len(rows(by))
        assert layout.lengths == ()
        return [row * number for row, number in zip(x, rows(by), strict=True)], [layout.rows] * layout.rows

    @op(batch=ragged("T"))
    def rag(
        self, x: Int64[Tensor, "T"], y: Int64[Tensor, "2"], sums: Sums, mode: Static[str], layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "T"], Int64[Tensor, "2"], str]:
        assert x.shape == (layout.offsets[-1],)
        assert y.shape == (layout.rows, 2)
        for state, length in zip(rows(sums), layout.lengths, strict=True):
            state.total += length
        return x + 100, y * 2, [mode] * layout.rows

    @op(batch=padded("T"))
    def pad(self, x: Float[Tensor, "3 T"], layout: Layout = ONE_ROW) -> Float[Tensor, "3 T"]:
        assert x.shape == (layout.rows, 3, max(layout.lengths))
        return x + 1

    @op(batch=stacked)
    def nothing(self, x: Int64[Tensor, "N"]) -> None:
        self.seen = x.shape

    @op(batch=stacked)
    def look(self, kv: View[KV]) -> int:
        return [len(rows(kv))] * len(rows(kv))


def run(name, calls):
    part = Part()
    the_op = Part.ops()[name]
    bound = [the_op.bind(part, (), call) for call in calls]
    columns = {key: [call[key] for call in bound] for key in bound[0]}
    return the_op.run(part, columns, len(calls))


def to_lists(results):
    return [tuple(part.tolist() if is_array(part) else part for part in row) for row in results]


@pytest.mark.parametrize("array", LIBRARIES)
def test_alone_runs_one_call_at_a_time(array):
    assert to_lists(run("one", [{"x": array([1, 2])}, {"x": array([3]), "by": 5}])) == [([2, 4],), ([15],)]


@pytest.mark.parametrize("array", LIBRARIES)
def test_stacked_gains_an_axis(array):
    calls = [{"x": array([1, 2]), "by": 1}, {"x": array([3, 4]), "by": 10}]
    assert to_lists(run("stack", calls)) == [([1, 2], 2), ([30, 40], 2)]
    assert to_lists(run("stack", calls[1:])) == [([30, 40], 1)]


@pytest.mark.parametrize("array", LIBRARIES)
def test_ragged_is_joined_along_its_dimension(array):
    states = [Sums(), Sums()]
    calls = [
        {"x": array([1, 2, 3]), "y": array([1, 1]), "sums": states[0], "mode": "m"},
        {"x": array([4]), "y": array([2, 2]), "sums": states[1], "mode": "m"},
    ]
    assert to_lists(run("rag", calls)) == [([101, 102, 103], [2, 2], "m"), ([104], [4, 4], "m")]
    assert [state.total for state in states] == [3, 1]


@pytest.mark.parametrize("zeros", [np.zeros, torch.zeros])
def test_padded_is_filled_with_zeros_and_cut_again(zeros):
    calls = [{"x": zeros((3, 2))}, {"x": zeros((3, 4))}]
    shapes = [result.shape for (result,) in run("pad", calls)]
    assert [tuple(shape) for shape in shapes] == [(3, 2), (3, 4)]


@pytest.mark.parametrize("array", LIBRARIES)
def test_an_op_that_gives_nothing(array):
    assert run("nothing", [{"x": array([1])}] * 3) == [(), (), ()]


def test_states_are_lists_of_rows():
    assert run("look", [{"kv": KV()}, {"kv": KV()}]) == [(2,), (2,)]


@pytest.mark.parametrize("array", LIBRARIES)
def test_a_call_is_a_batch_of_one(array):
    part = Part()
    assert part.one(array([1, 2])).tolist() == [2, 4]
    values, count = part.stack(array([1, 2]), 3)
    assert (values.tolist(), count) == ([3, 6], 1)
    assert part.nothing(array([1, 2])) is None
    assert tuple(part.seen) == (1, 2)
    state = Sums()
    assert part.rag(array([1]), array([2, 3]), sums=state, mode="m")[2] == "m"
    assert state.total == 1


# ---------------------------------------------------------------- which calls may join
def batch_key_of(name, **arguments):
    return Part.ops()[name].batch_key(arguments)


@pytest.mark.parametrize("array", LIBRARIES)
def test_calls_join_when_what_is_not_levelled_is_equal(array):
    assert batch_key_of("stack", x=array([1, 2]), by=1) == batch_key_of("stack", x=array([3, 4]), by=7)
    assert batch_key_of("stack", x=array([1, 2]), by=1) != batch_key_of("stack", x=array([3]), by=1)
    y = array([1, 2])
    assert batch_key_of("rag", x=array([1, 2]), y=y) == batch_key_of("rag", x=array([3]), y=y)
    assert batch_key_of("rag", x=array([1]), y=y) != batch_key_of("rag", x=array([1]), y=array([1]))
    assert batch_key_of("pad", x=array([[1.0], [1.0]])) == batch_key_of("pad", x=array([[1.0, 2.0], [1.0, 2.0]]))
    assert batch_key_of("pad", x=array([[1.0]])) != batch_key_of("pad", x=array([[1.0], [2.0]]))
    assert batch_key_of("one", x=array([1, 2])) == batch_key_of("one", x=array([1])) == ()


def test_a_wrong_number_of_dimensions_is_noticed():
    with pytest.raises(BadShape, match=r"`x` as int64\[N\], got shape \(2, 2\)\n  fix: pass an array with 1"):
        batch_key_of("stack", x=np.zeros((2, 2)), by=1)
    with pytest.raises(BadShape, match=r"`x` as int64\[N\], got a list"):
        batch_key_of("stack", x=[1, 2], by=1)


@pytest.mark.parametrize("name", ["stack", "rag", "pad"])
def test_calls_of_different_dtypes_or_libraries_do_not_join(name):
    x = np.ones((3, 2) if name == "pad" else 2, np.int64)
    others = [x.astype(np.int32), torch.tensor(x)]
    keys = [batch_key_of(name, x=value, y=np.ones(2)) for value in (x, *others)]
    assert len(set(keys)) == 3


# ---------------------------------------------------------------- arguments
def bound(name, *args, **kwargs):
    return Part.ops()[name].bind(Part(), args, kwargs)


def test_defaults_are_filled_in_so_that_all_calls_have_the_same_arguments():
    assert bound("one", 1) == {"x": 1, "by": 2} == bound("one", by=2, x=1)


def test_the_layout_is_nobodys_argument():
    assert bound("stack", 1, 2) == {"x": 1, "by": 2}
    assert Part.ops()["stack"].signature.layout == "layout"
    assert Part.ops()["one"].signature.layout is None


def test_offsets_of_a_layout():
    assert Layout(3, (2, 0, 5)).offsets == (0, 2, 2, 7)
    assert ONE_ROW.offsets == (0,)
    assert (ONE_ROW.rows, ONE_ROW.lengths, ONE_ROW.unfinished) == (1, (), frozenset())


def test_ways_of_joining_are_values():
    assert ragged("T") == ragged("T") != padded("T")
    assert (alone.mode, alone.dim, stacked.mode) == ("alone", "", "stacked")


# ---------------------------------------------------------------- values
@pytest.mark.parametrize("array", LIBRARIES)
def test_values_are_joined_by_their_own_library(array):
    one, two = array([[1, 2]]), array([[3, 4]])
    assert type(stack([one, two])) is type(one)
    assert stack([one, two]).tolist() == [[[1, 2]], [[3, 4]]]
    assert concatenate([one, two], 1).tolist() == [[1, 2, 3, 4]]
    assert cut(one, 1, 1, 2).tolist() == [[2]]
    assert [part.tolist() for part in split(array([[1, 2, 3]]), 1, (2, 0, 1))] == [[[1, 2]], [[]], [[3]]]
    filled = pad([array([1]), array([2, 3])], 0)
    assert filled.tolist() == [[1, 0], [2, 3]]
    assert filled.dtype == one.dtype


@pytest.mark.parametrize("array", LIBRARIES)
def test_arrays_are_filled_up_along_any_axis(array):
    filled = pad([array([[1], [2]]), array([[3, 4], [5, 6]])], 1)
    assert filled.tolist() == [[[1, 0], [2, 0]], [[3, 4], [5, 6]]]


@pytest.mark.parametrize("array", LIBRARIES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_seen(array, bad):
    assert is_finite(array([1.0, 2.0]))
    assert is_finite([array([1.0]), array([2])])
    assert not is_finite(array([[1.0], [bad]]))
    assert not is_finite([array([1.0]), array([bad])])


def test_anything_else_becomes_a_list():
    assert stack(("a", "b")) == ["a", "b"]
    assert stack([]) == []
    assert not is_array("a")


class Rowwise(Component):
    """Shows the sizes of its batches."""

    @op(batch=ragged("T"), chunked=True, rowwise_on_cpu=True)
    def sizes(self, x: Int64[Tensor, "T"], sums: Sums, layout: Layout = ONE_ROW) -> Int64[Tensor, "T"]:
        if -1 in x.tolist():
            raise RowsFailed({0: ValueError("negative")})
        rows(sums)[0].total += 10 * len(layout.unfinished) + layout.rows
        return x


def test_a_cpu_runs_an_op_row_by_row_if_it_says_so():
    made, states = Rowwise(), [Sums() for _ in range(3)]
    columns = {"x": [torch.arange(count) for count in (3, 1, 2)], "sums": states}
    results = made.ops()["sizes"].run(made, columns, 3, frozenset({2}))
    assert [result.tolist() for (result,) in results] == [[0, 1, 2], [0], [0, 1]]
    assert [state.total for state in states] == [1, 1, 11]
    made.device = torch.device("meta")
    assert not made.is_on_cpu
    assert "meta devices" in made.nondeterminism()


def test_a_row_that_fails_by_itself_is_named_by_its_place():
    made = Rowwise()
    columns = {"x": [torch.tensor([1]), torch.tensor([-1])], "sums": [Sums(), Sums()]}
    with pytest.raises(RowsFailed) as failed:
        made.ops()["sizes"].run(made, columns, 2)
    assert [*failed.value.errors] == [1]
