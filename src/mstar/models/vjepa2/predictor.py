"""The predictor of V-JEPA 2-AC as a component: it is shown frames, and imagines what actions lead to.

Plans that are followed side by side are rows of one state, not states of their own: sixty-four of those cost more to
keep account of than to compute. So a world is forked once, and an action is [plans, 7]. Rows of several requests go
through the layers together, as many at once as fit a core's cache.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar, cast

from mstar import ONE_ROW, Component, Float32, Layout, State, Tensor, View, op, ragged, rows, stacked
from mstar.models.vjepa2.checkpoint import Checkpoint
from mstar.models.vjepa2.world import World

S = TypeVar("S", bound=State)


class Predictor(Component):
    """Worlds, and what happens in them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> Any:
        """The network, with the tensors of the checkpoint."""
        return self._checkpoint.network("predictor")

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    def load_state(self, kind: type[S], exported: Any) -> S:
        """A world that began elsewhere."""
        world = self.make_state(kind)
        cast("World", world).load(exported)
        return world

    @op(batch=stacked)
    def observe(
        self, embeddings: Float32[Tensor, "P D"], pose: Float32[Tensor, "7"], horizon: int, world: World
    ) -> None:
        """This is what is seen now, and where the hand is, whatever was imagined. About so many actions will follow."""
        from mstar.models.vjepa2.network import to_tensor

        for latents, where, steps, one in zip(embeddings, to_tensor(pose), rows(horizon), rows(world), strict=True):
            one.observe(latents, where, steps)

    @op(batch=ragged("K"))
    def advance(self, actions: Float32[Tensor, "K 7"], world: World, layout: Layout = ONE_ROW) -> None:
        """Do something: one action of one plan, or of each that is followed."""
        import torch

        from mstar.models.vjepa2.network import apply_actions, concat, to_tensor

        given, network, worlds = to_tensor(actions), self.network, list(zip(rows(world), layout.lengths, strict=True))
        with torch.inference_mode():
            now = [one.current(count) for one, count in worlds]
            seen, poses = map(concat, zip(*now, strict=True))
            parts = [one.reserve(count, network.tokens, network.empty_cache) for one, count in worlds]
            seen, poses = network.predict(seen, given, poses, parts), apply_actions(poses, given)
        each = zip(worlds, seen.split(layout.lengths), poses.split(layout.lengths), strict=True)
        for (one, _), latents, places in each:
            one.latents, one.poses = latents, places

    @op
    def read_world(self, world: View[World]) -> tuple[Float32[Tensor, "K P D"], Float32[Tensor, "K 7"]]:
        """What is seen, and where the hand is, in each plan."""
        return cast("Any", (world.latents, world.poses))

    @op
    def distance(self, goal: Float32[Tensor, "P D"], world: View[World]) -> Float32[Tensor, "K"]:
        """How far from a goal is what each plan has led to."""
        return (cast("Any", world.latents) - goal).abs().mean((1, 2))
