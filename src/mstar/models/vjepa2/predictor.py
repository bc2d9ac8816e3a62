"""Predictor of V-JEPA 2-AC as a component: observes frames, and rolls out actions in a world model.

Parallel plans are rows of one state: 64 separate states would cost more in bookkeeping than in compute. A world is
forked once, and an action is [plans, 7]. Rows of several requests share a pass, in blocks that fit the cache of a core.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar, cast

from mstar import ONE_ROW, Component, Float32, Layout, State, Tensor, View, op, ragged, rows, stacked
from mstar.models.vjepa2.checkpoint import Checkpoint
from mstar.models.vjepa2.world import World
from mstar.walk.values import tensors_to_device

S = TypeVar("S", bound=State)


class Predictor(Component):
    """World model with its states."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> Any:
        """The predictor network, loaded on first use on the device of the component."""
        return self.on_device(self._checkpoint.network("predictor"))

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch."""
        return super().nondeterminism() or "torch computes some matrix products of all plans together"

    def load_state(self, kind: type[S], exported: Any) -> S:
        """Load a world that was exported by another worker."""
        world = self.make_state(kind)
        cast("World", world).load(exported if self.device is None else tensors_to_device(exported, self.device))
        return world

    @op(batch=stacked)
    def observe(
        self, embeddings: Float32[Tensor, "P D"], pose: Float32[Tensor, "7"], horizon: int, world: World
    ) -> None:
        """Set the observed frame and pose, replacing what was predicted. `horizon` actions are expected to follow."""
        from mstar.models.vjepa2.network import to_tensor

        poses = to_tensor(pose, self.device)
        for latents, row_pose, steps, row in zip(embeddings, poses, rows(horizon), rows(world), strict=True):
            row.observe(latents, row_pose, steps)

    @op(batch=ragged("K"))
    def advance(self, actions: Float32[Tensor, "K 7"], world: World, layout: Layout = ONE_ROW) -> None:
        """Apply one action to each plan."""
        import torch

        from mstar.models.vjepa2.network import apply_actions, concat, to_tensor

        inputs, network = to_tensor(actions, self.device), self.network
        worlds = list(zip(rows(world), layout.lengths, strict=True))
        with torch.inference_mode():
            current = [row.current(count) for row, count in worlds]
            latents, poses = map(concat, zip(*current, strict=True))
            parts = [row.reserve(count, network.tokens, network.empty_cache) for row, count in worlds]
            latents, poses = network.predict(latents, inputs, poses, parts), apply_actions(poses, inputs)
        results = zip(worlds, latents.split(layout.lengths), poses.split(layout.lengths), strict=True)
        for (row, _), row_latents, row_poses in results:
            row.latents, row.poses = row_latents, row_poses

    @op
    def read_world(self, world: View[World]) -> tuple[Float32[Tensor, "K P D"], Float32[Tensor, "K 7"]]:
        """Return the frame embedding and the pose of each plan."""
        return cast("Any", (world.latents, world.poses))

    @op
    def distance(self, goal: Float32[Tensor, "P D"], world: View[World]) -> Float32[Tensor, "K"]:
        """Return the mean absolute distance of each plan to a goal embedding."""
        return (cast("Any", world.latents) - goal).abs().mean((1, 2))
