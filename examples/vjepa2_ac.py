"""V-JEPA 2-AC: a world model that imagines what actions lead to, and plans with it.

The real one is a ViT-g video encoder and a 300M predictor: from a frame's embeddings, an action and the arm's pose it
predicts the embeddings of the next frame. A plan is found by the cross-entropy method: sample candidate plans, imagine
where each leads, refit to those that end nearest to a goal picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mstar import Action, Float32, Latents, Model, Tensor, each, loop, walk
from mstar.testing.toy_worlds import CrossEntropy, Predictor, VideoEncoder

Frames = Float32[Tensor, "F 3 H W"]
Goal = Float32[Tensor, "G 3 H W"]
Pose = Float32[Tensor, "7"]
Actions = Float32[Tensor, "K 7"]


@dataclass
class Scene:
    frames: np.ndarray
    pose: np.ndarray
    horizon: int
    actions: np.ndarray | None = None  # imagine where these lead
    goal: np.ndarray | None = None  # or find actions that lead here
    rounds: int = 3


class VJepa2AC(Model):
    """Imagines the frames that follow given actions, or finds the actions that lead to a given frame."""

    def __init__(self) -> None:
        self.encoder, self.predictor, self.cem = VideoEncoder(), Predictor(), CrossEntropy()

    @walk
    def rollout(self, frames: Frames, pose: Pose, horizon: int, actions: Actions) -> Iterator[Latents]:
        kv = self.predictor.kv()
        s = loop(steps=horizon, z=self.encoder.encode(frames), pose=pose)
        for step in s:
            s.z, s.pose = self.predictor.advance(s.z, actions[step], s.pose, kv)
            yield Latents(s.z)

    @walk
    def plan(self, frames: Frames, pose: Pose, horizon: int, goal: Goal, rounds: int) -> Iterator[Action]:
        now, wanted, seen = self.encoder.encode(frames), self.encoder.encode(goal), self.predictor.kv()
        self.predictor.observe(now, seen)
        mean, std = self.cem.begin(horizon)
        s = loop(steps=rounds, mean=mean, std=std)
        for step in s:
            candidates = self.cem.sample(s.mean, s.std, step)
            tries = each(candidates)
            for actions in tries:
                kv = seen.fork()
                t = loop(steps=horizon, z=now, pose=pose)
                for ahead in t:
                    t.z, t.pose = self.predictor.advance(t.z, actions[ahead], t.pose, kv)
                tries.collect(score=self.cem.score(t.z, wanted))
            s.mean, s.std = self.cem.refit(candidates, tries.score)
        yield Action(s.mean, rate=4)

    async def route(self, request: Scene) -> None:
        if request.goal is None:
            await self.rollout(request.frames, request.pose, request.horizon, request.actions)
        else:
            await self.plan(request.frames, request.pose, request.horizon, request.goal, request.rounds)


def requests() -> list[Scene]:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (4, 3, 16, 16)).astype(np.float32)
    actions = rng.integers(-9, 9, (6, 7)).astype(np.float32)
    pose = rng.integers(-9, 9, 7).astype(np.float32)
    return [
        Scene(frames[:2], pose, horizon=5, actions=actions),
        Scene(frames[:1], pose, horizon=3, goal=frames[3:]),
        Scene(frames[1:2], pose, horizon=2, goal=frames[2:], rounds=2),
    ]
