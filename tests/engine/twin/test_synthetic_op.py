"""What an op of a twin returns: values of its annotated types, sized by arguments, settings and recordings."""

from dataclasses import dataclass

import numpy as np
import torch

from mstar import Component, Float, Float32, Int64, Static, Tensor, UInt8, op, ragged, stacked
from mstar.engine.twin.synthetic_op import DEFAULT_SIZE, SyntheticOp
from mstar.requests import Segment
from mstar.walk.twin import TwinSizes


@dataclass
class Plan:
    steps: int
    name: str
    note: str = "default"


class Network(Component):
    weights = ("something",)

    @op(batch=ragged("T"))
    def encode(self, tokens: Int64[Tensor, "T"]) -> Float[Tensor, "T D"]: ...

    @op(batch=stacked)
    def draw(self, latents: Float[Tensor, "C H W"], size: Static[int]) -> UInt8[Tensor, "X Y 3"]: ...

    @op
    def split(self, text: str) -> tuple[list[str], int, Plan, Segment | None]: ...

    @op
    def speak(self, text: str) -> tuple[Float32[Tensor, "S"], list[Segment]]: ...

    @op
    def store(self, text: str) -> None: ...


def run(name, columns, count=1, recorded=lambda _: None, **dims):
    network = Network()
    synthetic = SyntheticOp(Network.ops()[name], f"network.{name}", TwinSizes(dims=dims), recorded)
    return synthetic.run(network, columns, count)


def test_named_dimensions_follow_the_arguments_row_by_row():
    first, second = run("encode", {"tokens": [torch.zeros(3, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)]}, 2)
    assert [tuple(value.shape) for (value,) in (first, second)] == [(3, DEFAULT_SIZE), (5, DEFAULT_SIZE)]
    assert first[0].dtype == torch.float32


def test_settings_override_the_default_size():
    ((pixels,),) = run(
        "draw", {"latents": [torch.zeros(1, 2, 2)], "size": [8]}, **{"network.draw.X": 7, "network.draw.Y": 9}
    )
    assert tuple(pixels.shape) == (7, 9, 3)
    assert pixels.dtype == torch.uint8


def test_a_list_has_as_many_items_as_the_number_beside_it():
    ((parts, count, plan, segment),) = run("split", {"text": ["x"]}, **{"network.split": 3})
    assert (parts, count, plan, segment) == ([""] * 3, 3, Plan(3, ""), None)
    assert run("store", {"text": ["x"]}) == [()]


def test_floats_are_a_tone_of_the_recorded_length_and_objects_are_recorded():
    words = [Segment(0.0, 1.0, "yes")]
    ((audio, segments),) = run("speak", {"text": ["x"]}, recorded=lambda _: (np.zeros(480, np.float32), words))
    assert len(audio) == 480
    assert segments == words
    assert 0.05 < float(audio.abs().max()) < 0.2
