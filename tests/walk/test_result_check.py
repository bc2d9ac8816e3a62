"""Results of an op are compared with its annotation, so that the op that made them is blamed."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mstar import (
    BadShape,
    Component,
    Float,
    Float32,
    Int64,
    Layout,
    Model,
    Tensor,
    Text,
    op,
    padded,
    ragged,
    stacked,
    walk,
)
from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, JobFailed
from mstar.testing.local_runtime import LocalRuntime
from mstar.walk.batching import ONE_ROW
from mstar.wire.failure import Failure


class Maker(Component):
    """Returns what it is told to."""

    name = "maker"

    def __init__(self) -> None:
        self.result: object = None
        self.runs = 0

    @op
    def alone(self) -> Float32[Tensor, "T 2"]:
        self.runs += 1
        return self.result

    @op
    def any_float(self) -> Float[Tensor, "2"]:
        return self.result

    @op
    def pair(self) -> tuple[Int64[Tensor, "1"], str]:
        return self.result

    @op(batch=stacked)
    def stacked(self, x: Float32[Tensor, "2"]) -> Float32[Tensor, "2"]:
        return self.result(x)

    @op(batch=ragged("T"))
    def ragged(self, x: Float32[Tensor, "T 2"], layout: Layout = ONE_ROW) -> Float32[Tensor, "T 2"]:
        return self.result(x)

    @op(batch=padded("T"))
    def padded(self, x: Float32[Tensor, "T 2"], layout: Layout = ONE_ROW) -> Float32[Tensor, "T 2"]:
        return self.result(x)


def call(name, result, *arguments):
    maker = Maker()
    maker.result = result
    return getattr(maker, name)(*arguments)


@pytest.mark.parametrize("library", [np, torch])
def test_results_as_declared(library):
    assert call("alone", library.zeros((3, 2), dtype=library.float32)).shape == (3, 2)
    for dtype in (library.float16, library.float32, library.float64):
        assert call("any_float", library.zeros(2, dtype=dtype)).dtype == dtype
    assert call("pair", (library.zeros(1, dtype=library.int64), "x"))[1] == "x"
    x, xs = library.ones(2, dtype=library.float32), library.ones((3, 2), dtype=library.float32)
    assert call("stacked", lambda batch: batch, x).shape == (2,)
    assert call("stacked", list, x).shape == (2,), "one value per row"
    assert call("ragged", lambda batch: batch, xs).shape == (3, 2)
    assert call("padded", lambda batch: batch, xs).shape == (3, 2)


@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize(
    ("name", "make", "got"),
    [
        ("alone", lambda lib: lib.zeros(2, dtype=lib.float32), "float32[T, 2], got float32[2]"),
        ("alone", lambda lib: lib.zeros((3, 4), dtype=lib.float32), "float32[T, 2], got float32[3, 4]"),
        ("alone", lambda lib: lib.zeros((3, 2), dtype=lib.float64), "float32[T, 2], got float64[3, 2]"),
        ("alone", lambda lib: [[0.0, 0.0]], "float32[T, 2], got a list"),
        ("alone", lambda lib: None, "float32[T, 2], got None"),
        ("any_float", lambda lib: lib.zeros(2, dtype=lib.int64), "float[2], got int64[2]"),
        ("pair", lambda lib: lib.zeros(1, dtype=lib.int64), "returned int64[1], not a tuple of 2 values"),
        ("pair", lambda lib: (lib.zeros(1, dtype=lib.int64),), "returned a tuple, not a tuple of 2 values"),
        ("pair", lambda lib: (lib.zeros(2, dtype=lib.int64), ""), "int64[1], got int64[2]"),
    ],
)
def test_other_results_name_the_op(library, name, make, got):
    with pytest.raises(BadShape) as caught:
        call(name, make(library))
    assert f"op maker.{name} " in str(caught.value)
    assert got in str(caught.value)
    assert "\n  fix: return" in str(caught.value)
    failure = Failure.from_exception(caught.value)
    assert failure.is_authored, "the line of the op is known"
    assert failure.location.endswith(f"test_result_check.py:{getattr(Maker, name).op.body.__code__.co_firstlineno}")


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("stacked", lambda x: x[0]),
        ("stacked", lambda x: x[:, :1]),
        ("stacked", lambda x: [row[:1] for row in x]),
        ("ragged", lambda x: x[None]),
        ("padded", lambda x: x[0]),
    ],
)
def test_other_results_of_a_batch(name, result):
    x = np.ones(2, np.float32) if name == "stacked" else np.ones((3, 2), np.float32)
    with pytest.raises(BadShape, match=rf"op maker\.{name} .* \(batch={name}\)"):
        call(name, result, x)


def test_an_engine_checks_the_first_batch_and_then_samples():
    maker, engine = Maker(), Engine(check_interval=4)
    good, bad = np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float64)

    def run(result):
        maker.result = result
        (done,) = engine.run(maker, Maker.ops()["alone"], [Job({})])
        return type(done)

    assert [run(each) for each in (good, bad, bad, bad, good)] == [JobDone, JobDone, JobDone, JobFailed, JobDone]
    assert maker.runs == 5, "a check repeats no call"
    fresh = Engine(check_interval=4)
    maker.result = bad
    (first,) = fresh.run(maker, Maker.ops()["alone"], [Job({})])
    assert isinstance(first, JobFailed)


class Pipe(Model):
    def __init__(self) -> None:
        self.maker = Maker()
        self.maker.result = np.zeros(2, np.float64)
        self.reader = Reader()

    @walk
    def play(self) -> Iterator[Text]:
        yield Text(self.reader.read(self.maker.alone()))


class Reader(Component):
    @op(batch=ragged("T"))
    def read(self, x: Float32[Tensor, "T 2"]) -> Float32[Tensor, "T 2"]:
        return x


def test_the_right_op_is_blamed():
    with pytest.raises(BadShape, match=r"op maker\.alone is declared to return float32\[T, 2\], got float64\[2\]"):
        Pipe().run({})
    error = LocalRuntime(Pipe()).run({}).error
    assert "op maker.alone is declared" in str(error)
