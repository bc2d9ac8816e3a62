"""V-JEPA 2-AC: imagines what a robot's actions lead to, and plans by it.

A frame becomes embeddings; of these, an action and the hand's pose a predictor makes the embeddings that follow, and so
on. A plan is found by trying: many are imagined from what is seen now, and those that end nearest to a goal picture
say where to look for better ones. A client may go on: what was seen and done before is then remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mstar import Action, Float32, Latents, Model, Tensor, UInt8, loop, walk
from mstar.models.vjepa2.cem import CemParams, CrossEntropy
from mstar.models.vjepa2.checkpoint import Checkpoint
from mstar.models.vjepa2.predictor import Predictor
from mstar.models.vjepa2.validation import OBSERVATION_FIELDS, parse_cem_params, parse_observation, to_float32
from mstar.models.vjepa2.vision_encoder import FrameEncoder
from mstar.models.vjepa2.world import World
from mstar.requests import ActionRequest, RolloutRequest

ACTION_RATE_HZ = 4
"""So many actions a second it was trained with."""


class VJepa2AC(Model):
    """An eye, a predictor and a search. `weights` is a folder, or `hub:` and a name."""

    def __init__(self, weights: str = "vjepa2-ac-vitg", *, dtype: str = "float32") -> None:
        checkpoint = Checkpoint(weights, dtype)
        self.encoder, self.predictor, self.cem = FrameEncoder(checkpoint), Predictor(checkpoint), CrossEntropy()

    @walk
    def observe(self, image: UInt8[Tensor, "H W 3"], pose: Float32[Tensor, "7"], horizon: int, world: World) -> None:
        """This is seen now, and here is the hand."""
        self.predictor.observe(self.encoder.encode_frame(image), pose, horizon, world)

    @walk
    def apply_action(self, action: Float32[Tensor, "1 7"], world: World) -> None:
        """This was carried out."""
        self.predictor.advance(action, world)

    @walk
    def rollout(self, actions: list[Float32[Tensor, "K 7"]], steps: int, world: World) -> Iterator[Latents | Action]:
        """What is seen, and where the hand is, after each action."""
        for step in loop(steps=steps):
            self.predictor.advance(actions[step], world)
            seen, poses = self.predictor.read_world(world)
            yield Latents(seen)
            yield Action(poses, rate=ACTION_RATE_HZ)

    @walk
    def plan(self, goal: UInt8[Tensor, "H W 3"], params: CemParams, start: World) -> Iterator[Action]:
        """Actions that lead to a goal."""
        wanted = self.encoder.encode_frame(goal)
        mean, spread = self.cem.begin(params)
        s = loop(steps=params.rounds, mean=mean, spread=spread)
        for step in s:
            plans, world = self.cem.sample(s.mean, s.spread, step, params), start.fork()
            for ahead in loop(steps=params.horizon):
                self.predictor.advance(plans[ahead], world)
            costs = self.predictor.distance(wanted, world)
            s.mean, s.spread = self.cem.refit(plans, costs, s.mean, s.spread, params)
        yield Action(self.cem.best_actions(s.mean), rate=ACTION_RATE_HZ)

    async def route(self, request: RolloutRequest | ActionRequest) -> None:
        """Imagine, and go on with each action that is said; or plan, and again for each observation that is said.

        An action is 7 numbers, or [K, 7] of K plans that are imagined side by side.
        """
        world = self.predictor.state(World)
        if isinstance(request, RolloutRequest):
            seen, actions = (
                parse_observation(request.observation),
                [to_float32(one).reshape(-1, 7) for one in request.actions],
            )
            await self.observe(seen["image"], seen["pose"], max(1, len(actions)), world)
            await self.rollout(actions, len(actions), world)
            while (action := await self.next_input()) is not None:
                await self.rollout([to_float32(action).reshape(-1, 7)], 1, world)
            return
        seen = parse_observation(request.observation, "goal")
        search = parse_cem_params(seen, request)
        while True:
            await self.observe(seen["image"], seen["pose"], search.horizon, world)
            await self.plan(seen["goal"], search, world)
            if (said := await self.next_input()) is None:
                return
            seen |= parse_observation(said, "action")
            await self.apply_action(seen["action"][None], world)

    def robot_spec(self) -> Mapping[str, Any]:
        """What it sees and does."""
        return {"fields": OBSERVATION_FIELDS, "rate": ACTION_RATE_HZ}
