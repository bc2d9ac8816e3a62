"""Toy robot policy and toy world models: walks with KV caches over the components of `mstar.testing`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mstar import KV, Action, Component, Float32, Int64, Latents, Model, Tensor, each, loop, op, walk
from mstar.requests import ActionRequest, RolloutRequest
from mstar.testing.toy_worlds import ImageEncoder, Policy, Predictor, VideoEncoder

VIEWS = (2, 3, 16, 16)
FAULTY_SEED = 1_000_013
"""Seed of the action that is not finite; more than the ticks that a slow load generator counts."""


class FaultyActuator(Component):
    @op
    def pass_through(self, actions: Float32[Tensor, "50 7"], seed: int) -> Float32[Tensor, "50 7"]:
        return actions * np.float32(np.nan) if seed == FAULTY_SEED else actions


class Arm(Model):
    """Flow-matching policy: one prefix of cameras, task and pose, then a denoising loop over an action chunk."""

    def __init__(self) -> None:
        self.vit, self.policy, self.actuator = ImageEncoder(), Policy(), FaultyActuator()
        self.seen: list[ActionRequest] = []

    @walk
    def act(
        self, cameras: Float32[Tensor, "V 3 H W"], task: Int64[Tensor, "T"], pose: Float32[Tensor, "32"], seed: int
    ) -> Iterator[Action]:
        views = each(cameras)
        for camera in views:
            views.collect(patches=self.vit.encode(camera))
        kv = self.policy.kv()
        self.policy.prefix(views.patches, task, pose, kv)
        s = loop(steps=4, actions=self.policy.noise(seed))
        for step in s:
            s.actions = self.policy.move(s.actions, self.policy.flow(s.actions, step, kv))
        yield Action(self.actuator.pass_through(self.policy.finish(s.actions), seed), rate=50)

    async def route(self, request: ActionRequest) -> None:
        self.seen.append(request)
        seen = request.observation
        if request.prompt == "break":
            raise RuntimeError("an internal secret: /etc/passwd")
        await self.act(seen["cameras"], self.policy.tokenize(request.prompt), seen["pose"], request.seed)

    def robot_spec(self) -> Mapping[str, Any]:
        fields = {"cameras": {"dtype": "float32", "shape": VIEWS}, "pose": {"dtype": "float32", "shape": [32]}}
        return {"observation": fields, "actions": {"dtype": "float32", "shape": [50, 7]}, "rate": 50}


class ToyWorldModel(Model):
    """World model that replays the whole lineage in every request."""

    def __init__(self) -> None:
        self.encoder, self.predictor = VideoEncoder(), Predictor()

    @walk
    def look(self, frames: Float32[Tensor, "F 3 H W"]) -> Float32[Tensor, "N 64"]:
        return self.encoder.encode(frames)

    @walk
    def imagine(
        self, z: Float32[Tensor, "N 64"], action: Float32[Tensor, "7"], pose: Float32[Tensor, "7"], kv: KV
    ) -> Iterator[Latents]:
        z, pose = self.predictor.advance(z, action, pose, kv)
        yield Latents(z)
        return z, pose

    async def route(self, request: RolloutRequest) -> None:
        kv, pose = self.predictor.kv(), np.zeros(7, np.float32)
        z = await self.look(request.observation["frames"])
        for action in request.actions:
            z, pose = await self.imagine(z, action, pose, kv)


class MultiTurnWorldModel(ToyWorldModel):
    """World model with a multi-turn route: keeps its KV cache between the actions of a client."""

    async def route(self, request: RolloutRequest) -> None:
        kv, pose = self.predictor.kv(), np.zeros(7, np.float32)
        z = await self.look(request.observation["frames"])
        for action in request.actions:
            z, pose = await self.imagine(z, action, pose, kv)
        while (action := await self.next_input()) is not None:
            z, pose = await self.imagine(z, action, pose, kv)


def observation(seed=0):
    """Observation of `Arm`: seeded camera images and pose."""
    rng = np.random.default_rng(seed)
    cameras = rng.integers(0, 255, VIEWS).astype(np.float32)
    return {"cameras": cameras, "pose": rng.integers(-9, 9, 32).astype(np.float32)}
