"""Terrain whose network runs in parts, so that others get their turn before a picture is done.

An op cannot be interrupted: while it runs, that engine serves no other request. The whole network takes longer than a
robot waits, each of these parts far less. The pictures are those of `mstar.models.terrain` in one step, from the same
weights; the graph is cut where it is loaded. More steps, partial pictures and named difficulties are left out.

Workload: the published terrain network at its published size, one denoising step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mstar import Float32, Image, Model, Static, Tensor, op, walk
from mstar.models.terrain.unet import UNET, Denoiser, Shader
from mstar.requests import ImageRequest

PARTS = 16
MAX_SIGMA = 80.0
"""How strong the noise is in the only step."""


@dataclass(frozen=True, slots=True)
class CutValues:
    """All that crosses a cut, by its name in the graph."""

    values: dict[str, Any]


class SplitDenoiser(Denoiser):
    """The U-Net in parts, each with as many nodes as the others."""

    @functools.cached_property
    def _parts(self) -> list[Any]:
        import onnx
        import onnxruntime
        from onnx.utils import Extractor

        whole = onnx.load(UNET.path())
        ends = [len(whole.graph.node) * part // PARTS for part in range(PARTS + 1)]
        names, cutter = [_cut_names(whole.graph, end) for end in ends], Extractor(whole)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        parts = [cutter.extract_model(*given_and_made).SerializeToString() for given_and_made in pairwise(names)]
        return [onnxruntime.InferenceSession(part, options, providers=["CPUExecutionProvider"]) for part in parts]

    def prepare(self) -> None:
        """Load and cut the network."""
        _ = self._parts

    @op
    def first_inputs(self, noise: Float32[Tensor, "128 128"], difficulty: int) -> CutValues:
        """What the first part is given."""
        import numpy as np

        sigma, label = np.array([MAX_SIGMA], np.float32), np.array([(difficulty - 1) / 99], np.float32)
        return CutValues({"noisy": (sigma * np.asarray(noise))[None, None], "sigma": sigma, "difficulty": label})

    @op
    def run(self, given: CutValues, part: Static[int]) -> CutValues:
        """What a part makes for those behind it."""
        session = self._parts[part]
        names = [made.name for made in session.get_outputs()]
        made = session.run(names, {one.name: given.values[one.name] for one in session.get_inputs()})
        return CutValues(dict(zip(names, made, strict=True)))

    @op
    def final_output(self, made: CutValues) -> Float32[Tensor, "128 128"]:
        """The land that the last part has found."""
        return made.values["denoised"][0, 0]


def _cut_names(graph: Any, end: int) -> list[str]:
    """What nodes before a cut make, or the network is given, and nodes behind it use."""
    if end == len(graph.node):
        return [made.name for made in graph.output]
    made = [*(given.name for given in graph.input), *(name for node in graph.node[:end] for name in node.output)]
    used = {name for node in graph.node[end:] for name in node.input}
    return [name for name in made if name in used]


class SplitTerrain(Model):
    """Draws land in one step."""

    def __init__(self) -> None:
        self.denoiser, self.shader = SplitDenoiser(), Shader()

    @walk
    def draw(self, seed: int) -> Iterator[Image]:
        """The land of a seed."""
        noise, _, difficulty = self.denoiser.begin(seed, 0)
        values = self.denoiser.first_inputs(noise, difficulty)
        for part in range(PARTS):
            values = self.denoiser.run(values, part)
        yield Image(self.shader.relief(self.denoiser.final_output(values), noise, 0, 1))

    async def route(self, request: ImageRequest) -> None:
        """Draw."""
        await self.draw(request.seed)
