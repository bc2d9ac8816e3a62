"""V-JEPA 2-AC: an action-conditioned world model, and planning with it.

The published model is a ViT-g video encoder and a 300M predictor: from the embeddings of a frame, an action and the
pose of the arm it predicts the embeddings of the next frame. The cross-entropy method finds a plan: sample candidates,
roll them out, and refit to those that end nearest to a goal image.
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
    actions: np.ndarray | None = None  # roll these out
    goal: np.ndarray | None = None  # or find actions that lead to this image
    rounds: int = 3


class VJepa2AC(Model):
    """Predicts the frames that follow given actions, or finds the actions that lead to a given frame."""

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
        now, target, observed = self.encoder.encode(frames), self.encoder.encode(goal), self.predictor.kv()
        self.predictor.observe(now, observed)
        mean, std = self.cem.begin(horizon)
        s = loop(steps=rounds, mean=mean, std=std)
        for step in s:
            candidates = self.cem.sample(s.mean, s.std, step)
            rollouts = each(candidates)
            for actions in rollouts:
                kv = observed.fork()
                t = loop(steps=horizon, z=now, pose=pose)
                for step_ahead in t:
                    t.z, t.pose = self.predictor.advance(t.z, actions[step_ahead], t.pose, kv)
                rollouts.collect(score=self.cem.score(t.z, target))
            s.mean, s.std = self.cem.refit(candidates, rollouts.score)
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
