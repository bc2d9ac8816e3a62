"""Ops run without autograd, after `prepare`, in every way to run a model."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from mstar import Component, Float32, Model, State, Tensor, Text, loop, op, walk
from mstar.engine.engine import Engine
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.testing import parity
from mstar.testing.local_runtime import LocalRuntime


class Memory(State):
    def __init__(self) -> None:
        self.h = torch.zeros(1, 3)
        self.history = {"all": [torch.ones(1)]}


class Cell(Component):
    """A recurrent network whose parameters require gradients, as those of every torch module do."""

    def __init__(self) -> None:
        self.prepared = 0
        self.modes: set[bool] = set()

    def prepare(self) -> None:
        self.prepared += 1
        torch.manual_seed(0)
        self.cell = torch.nn.GRUCell(2, 3)
        self.start = torch.nn.Parameter(torch.ones(2))

    @op
    def begin(self) -> Float32[Tensor, "2"]:
        return self.start[:]  # a view of a parameter requires gradients even in inference mode

    @op
    def step(self, x: Float32[Tensor, "2"], memory: Memory) -> Float32[Tensor, "2"]:
        self.modes.add(torch.is_inference_mode_enabled())
        memory.h = self.cell(x[None], memory.h)
        memory.history["all"].append(memory.h)
        return memory.h[0, :2]


class Recurrent(Model):
    def __init__(self) -> None:
        self.cell = Cell()

    @walk
    def play(self, memory: Memory) -> Iterator[Text]:
        s = loop(steps=3, x=self.cell.begin())
        for _ in s:
            s.x = self.cell.step(s.x, memory)
            yield Text(s.x)

    async def route(self, request: dict) -> None:
        memory = self.cell.state(Memory)
        await self.play(memory)
        await self.play(memory.fork())


def test_eager_ops_run_without_autograd():
    model = Recurrent()
    emissions = model.run({}).emissions
    assert model.cell.modes == {True}
    assert not any(emission.value.requires_grad for emission in emissions)
    assert emissions[-1].value.numpy().shape == (2,)


def test_served_ops_run_without_autograd():
    model = Recurrent()
    outcome = LocalRuntime(model).run({})
    assert outcome.error is None
    assert model.cell.modes == {True}
    parity(model, {})


def test_a_result_has_no_graph():
    begin = Cell().begin()
    assert not begin.requires_grad
    assert begin.numpy().tolist() == [1, 1]


@pytest.mark.parametrize("run", ["op", "walk", "model", "local", "in process"])
def test_prepare_is_called_once_by_every_way_to_run(run):
    model = Recurrent()
    for _ in range(2):
        if run == "op":
            model.cell.begin()
        elif run == "walk":
            model.play(model.cell.state(Memory)).run()
        elif run == "model":
            model.run({})
        elif run == "local":
            LocalRuntime(model).run({})
    if run == "in process":
        with InProcessLauncher({"m": PlannedModel(model, plan(model.graphs(), None))}):
            model.run({})
    assert model.cell.prepared == 1


def test_prepare_by_the_author_is_not_repeated():
    model = Recurrent()
    model.cell.prepare()
    model.run({})
    assert model.cell.prepared == 1
    model.cell.prepare()  # but the author can load again
    assert model.cell.prepared == 2


def test_prepare_that_failed_is_called_again():
    class Unlucky(Cell):
        def prepare(self) -> None:
            super().prepare()
            if self.prepared == 1:
                raise OSError("no weights yet")

    cell = Unlucky()
    with suppress(OSError):
        cell.begin()
    assert cell.begin().shape == (2,)
    assert cell.prepared == 2


def test_prepare_can_call_ops():
    class Warm(Cell):
        def prepare(self) -> None:
            super().prepare()
            self.warm = self.begin()

    cell = Warm()
    cell.begin()
    assert cell.prepared == 1


@pytest.mark.parametrize("copy", ["fork", "snapshot", "export"])
def test_a_state_can_have_a_tensor_with_a_graph(copy):
    state, parameter = Memory(), torch.nn.Parameter(torch.ones(1))
    state.h = parameter * 2
    state.history["all"].append(state.h)
    copied = getattr(state, copy)()
    content = vars(copied) if copy == "fork" else copied
    assert content["h"].tolist() == content["history"]["all"][1].tolist() == [2.0]
    assert content["h"] is content["history"]["all"][1]
    assert not content["h"].requires_grad
    with torch.no_grad():
        state.h += 1
    assert content["h"].tolist() == [2.0]


def test_a_state_can_have_a_tensor_of_inference_mode():
    engine, cell = Engine(), Cell()
    state = engine.new_state(cell, Memory)
    forked = engine.load(cell, Memory, engine.export(engine.fork(state)))
    with torch.inference_mode():
        forked.h += 1
    assert (state.h.sum(), forked.h.sum()) == (0, 3)


def test_a_state_that_cannot_be_copied_says_so():
    class Uncopyable:
        def __deepcopy__(self, memo: object) -> None:
            raise RuntimeError("not this one")

    state = Memory()
    state.other = Uncopyable()
    with pytest.raises(RuntimeError, match="not this one"):
        state.fork()
