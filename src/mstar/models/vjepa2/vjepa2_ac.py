"""V-JEPA 2-AC: imagines what a robot's actions lead to, and plans by it.

A frame becomes embeddings; of these, an action and the hand's pose a predictor makes the embeddings that follow, and so
on. A plan is found by trying: many are imagined from what is seen now, and those that end nearest to a goal picture
say where to look for better ones. A client may go on: what was seen and done before is then remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mstar import Action, Float32, Latents, Model, Tensor, UInt8, loop, walk
from mstar.asks import Acting, Imagining
from mstar.models.vjepa2.asked import FIELDS, floats, search_of, understood
from mstar.models.vjepa2.cem import CrossEntropy, Search
from mstar.models.vjepa2.checkpoint import Checkpoint
from mstar.models.vjepa2.eyes import FrameEye
from mstar.models.vjepa2.predictor import Predictor
from mstar.models.vjepa2.world import World

RATE = 4
"""So many actions a second it was trained with."""


class VJepa2AC(Model):
    """An eye, a predictor and a search. `weights` is a folder, or `hub:` and a name."""

    def __init__(self, weights: str = "vjepa2-ac-vitg", *, dtype: str = "float32") -> None:
        checkpoint = Checkpoint(weights, dtype)
        self.eye, self.predictor, self.cem = FrameEye(checkpoint), Predictor(checkpoint), CrossEntropy()

    @walk
    def see(self, image: UInt8[Tensor, "H W 3"], pose: Float32[Tensor, "7"], ahead: int, world: World) -> None:
        """This is seen now, and here is the hand."""
        self.predictor.observe(self.eye.frame(image), pose, ahead, world)

    @walk
    def do(self, action: Float32[Tensor, "1 7"], world: World) -> None:
        """This was carried out."""
        self.predictor.advance(action, world)

    @walk
    def rollout(self, actions: list[Float32[Tensor, "K 7"]], steps: int, world: World) -> Iterator[Latents | Action]:
        """What is seen, and where the hand is, after each action."""
        for step in loop(steps=steps):
            self.predictor.advance(actions[step], world)
            seen, poses = self.predictor.look(world)
            yield Latents(seen)
            yield Action(poses, rate=RATE)

    @walk
    def plan(self, goal: UInt8[Tensor, "H W 3"], search: Search, here: World) -> Iterator[Action]:
        """Actions that lead to a goal."""
        wanted = self.eye.frame(goal)
        mean, spread = self.cem.begin(search)
        s = loop(steps=search.rounds, mean=mean, spread=spread)
        for step in s:
            plans, world = self.cem.sample(s.mean, s.spread, step, search), here.fork()
            for ahead in loop(steps=search.horizon):
                self.predictor.advance(plans[ahead], world)
            costs = self.predictor.distance(wanted, world)
            s.mean, s.spread = self.cem.refit(plans, costs, s.mean, s.spread, search)
        yield Action(self.cem.chosen(s.mean), rate=RATE)

    async def route(self, request: Imagining | Acting) -> None:
        """Imagine, and go on with each action that is said; or plan, and again for each observation that is said.

        An action is 7 numbers, or [K, 7] of K plans that are imagined side by side.
        """
        world = self.predictor.state(World)
        if isinstance(request, Imagining):
            seen, actions = understood(request.observation), [floats(one).reshape(-1, 7) for one in request.actions]
            await self.see(seen["image"], seen["pose"], max(1, len(actions)), world)
            await self.rollout(actions, len(actions), world)
            while (action := await self.more()) is not None:
                await self.rollout([floats(action).reshape(-1, 7)], 1, world)
            return
        seen = understood(request.observation, "goal")
        search = search_of(seen, request)
        while True:
            await self.see(seen["image"], seen["pose"], search.horizon, world)
            await self.plan(seen["goal"], search, world)
            if (said := await self.more()) is None:
                return
            seen |= understood(said, "action")
            await self.do(seen["action"][None], world)

    def robot(self) -> Mapping[str, Any]:
        """What it sees and does."""
        return {"fields": FIELDS, "rate": RATE}
