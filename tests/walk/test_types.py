"""Annotations: what they say to the tracer, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Optional, Union

import pytest

from mstar import KV, Bool, Float, Float32, Int64, State, Static, Tensor, View
from mstar.graph.types import ListType, ObjectType, StateType, TensorType
from mstar.walk.types import UnknownHint, fields_of, fits, read_hint, read_return


class Past(State):
    pass


@dataclass
class Sampling:
    limit: int
    prompt: Int64[Tensor, "T"]
    image: Tensor
    seeds: list[int]


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Int64[Tensor, "T"], "int64[T]"),
        (Float[Tensor, "N 64"], "float[N, 64]"),
        (Bool[Tensor, ""], "bool[]"),
        (KV, "state KV"),
        (View[Past], "state Past"),
        (list[Int64[Tensor, "T"]], "list[int64[T]]"),
        (list[list[int]], "list[list[int]]"),
        (int, "int"),
        (Static[str], "str"),
        (Sampling, "Sampling"),
        (int | None, "int | NoneType"),
        (Optional[float], "float | NoneType"),  # noqa: UP045
        (Union[int, str], "int | str"),  # noqa: UP007
        (Annotated[int, "a note"], "int"),
    ],
)
def test_what_an_annotation_says(hint, expected):
    assert str(read_hint(hint).type) == expected


def test_how_an_op_uses_it():
    assert (read_hint(View[KV]).is_view, read_hint(View[KV]).is_static) == (True, False)
    assert (read_hint(Static[str]).is_view, read_hint(Static[str]).is_static) == (False, True)
    assert (read_hint(KV).is_view, read_hint(KV).is_static) == (False, False)
    assert read_hint(View[Past]).python is Past


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (Tensor, "a bare Tensor has no dtype and no dimensions"),
        (dict[str, int], r"dict\[str, int\] is not a type of walk values"),
        (list[Tensor], "a bare Tensor"),
        (Int64[Tensor, "T"] | None, r"a tensor \(int64\[T\]\) cannot be optional or part of a union"),
        ("anything", "anything is not a type of walk values"),
    ],
)
def test_what_no_walk_can_carry(hint, reason):
    with pytest.raises(UnknownHint, match=reason):
        read_hint(hint)


@pytest.mark.parametrize("item", [Tensor, "T", (Tensor, 28), (Tensor, "B, T"), (Tensor, "*rest"), (Tensor, "T-1")])
def test_a_tensor_that_is_written_otherwise(item):
    with pytest.raises(TypeError, match=r'dimensions are a string separated by spaces, as in Int64\[Tensor, "T 64"\]'):
        Int64[item]


def test_what_an_op_gives():
    assert read_return(None) == ((), False)
    assert read_return(type(None)) == ((), False)
    (one,), is_tuple = read_return(int)
    assert (one.type, is_tuple) == (ObjectType("int"), False)
    outs, is_tuple = read_return(tuple[int, KV])
    assert ([out.type for out in outs], is_tuple) == ([ObjectType("int"), StateType("KV")], True)


FLOAT32, INT64 = TensorType("float32", ("N",)), TensorType("int64", ("N",))
ANY = TensorType("float", ("N",))


@pytest.mark.parametrize(
    ("want", "got", "expected"),
    [
        (INT64, INT64, True),
        (INT64, TensorType("int64", (4, 4)), True),  # dimensions are another matter
        (INT64, FLOAT32, False),
        (ANY, FLOAT32, True),
        (ANY, TensorType("bfloat16"), True),
        (ANY, INT64, False),
        (FLOAT32, ANY, False),
        (ListType(ANY), ListType(FLOAT32), True),
        (ListType(INT64), ListType(FLOAT32), False),
        (ListType(INT64), INT64, False),
        (ObjectType("int"), ObjectType("int"), True),
        (ObjectType("float"), ObjectType("int"), True),
        (ObjectType("int"), ObjectType("float"), False),
        (ObjectType("int | NoneType"), ObjectType("NoneType"), True),
        (ObjectType("int | NoneType"), ObjectType("int | NoneType"), True),
        (ObjectType("int | NoneType"), ObjectType("str"), False),
        (StateType("KV"), StateType("KV"), True),
        (StateType("KV"), StateType("Past"), False),
        (StateType("KV"), ObjectType("KV"), False),
    ],
)
def test_what_fits(want, got, expected):
    assert fits(want, got) is expected


def test_fields_of_a_request_are_those_a_walk_can_carry():
    assert {name: str(hint.type) for name, hint in fields_of(Sampling).items()} == {
        "limit": "int",
        "prompt": "int64[T]",
        "seeds": "list[int]",
    }
    assert read_hint(Float32[Tensor, "3 H W"]).type.dims == (3, "H", "W")
