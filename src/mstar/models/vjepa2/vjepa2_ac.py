"""V-JEPA 2-AC: an action-conditioned world model for robots, with planning towards a goal image.

Components: `encoder` (frame to embeddings), `predictor` (embeddings, action and pose to the next embeddings, with a KV
cache) and `cem` (cross-entropy method). A rollout applies actions one by one. A plan samples many action sequences,
rolls them out from the current frame, and refits the distribution to those that end nearest to the goal. A session
keeps its observations and actions, and the client can continue it.
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
"""Action rate of the training data, per second."""


class VJepa2AC(Model):
    """Serves rollouts and plans. `weights` is a folder, or `hub:NAME`."""

    def __init__(self, weights: str = "vjepa2-ac-vitg", *, dtype: str = "float32") -> None:
        checkpoint = Checkpoint(weights, dtype)
        self.encoder, self.predictor, self.cem = FrameEncoder(checkpoint), Predictor(checkpoint), CrossEntropy()

    @walk
    def observe(self, image: UInt8[Tensor, "H W 3"], pose: Float32[Tensor, "7"], horizon: int, world: World) -> None:
        """Set the observed frame and pose."""
        self.predictor.observe(self.encoder.encode_frame(image), pose, horizon, world)

    @walk
    def apply_action(self, action: Float32[Tensor, "1 7"], world: World) -> None:
        """Apply an action that the robot has executed."""
        self.predictor.advance(action, world)

    @walk
    def rollout(self, actions: list[Float32[Tensor, "K 7"]], steps: int, world: World) -> Iterator[Latents | Action]:
        """Emit the frame embedding and the pose after each action."""
        for step in loop(steps=steps):
            self.predictor.advance(actions[step], world)
            latents, poses = self.predictor.read_world(world)
            yield Latents(latents)
            yield Action(poses, rate=ACTION_RATE_HZ)

    @walk
    def plan(self, goal: UInt8[Tensor, "H W 3"], params: CemParams, start: World) -> Iterator[Action]:
        """Emit the actions that lead to a goal image."""
        target = self.encoder.encode_frame(goal)
        mean, spread = self.cem.begin(params)
        s = loop(steps=params.rounds, mean=mean, spread=spread)
        for step in s:
            plans, world = self.cem.sample(s.mean, s.spread, step, params), start.fork()
            for action_index in loop(steps=params.horizon):
                self.predictor.advance(plans[action_index], world)
            costs = self.predictor.distance(target, world)
            s.mean, s.spread = self.cem.refit(plans, costs, s.mean, s.spread, params)
        yield Action(self.cem.best_actions(s.mean), rate=ACTION_RATE_HZ)

    async def route(self, request: RolloutRequest | ActionRequest) -> None:
        """Roll out actions, then each further action of the client; or plan, then again for each further observation.

        An action is 7 values, or [K, 7] for K parallel plans.
        """
        world = self.predictor.state(World)
        if isinstance(request, RolloutRequest):
            observation = parse_observation(request.observation)
            actions = [to_float32(action).reshape(-1, 7) for action in request.actions]
            await self.observe(observation["image"], observation["pose"], max(1, len(actions)), world)
            await self.rollout(actions, len(actions), world)
            while (action := await self.next_input()) is not None:
                await self.rollout([to_float32(action).reshape(-1, 7)], 1, world)
            return
        observation = parse_observation(request.observation, "goal")
        params = parse_cem_params(observation, request)
        while True:
            await self.observe(observation["image"], observation["pose"], params.horizon, world)
            await self.plan(observation["goal"], params, world)
            if (following := await self.next_input()) is None:
                return
            observation |= parse_observation(following, "action")
            await self.apply_action(observation["action"][None], world)

    def robot_spec(self) -> Mapping[str, Any]:
        """Observation fields, and the action rate."""
        return {"fields": OBSERVATION_FIELDS, "rate": ACTION_RATE_HZ}
