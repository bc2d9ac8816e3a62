"""pi0.5: a vision-language-action policy for robots.

The published model is PaliGemma with an action expert: cameras, task and robot state form a prefix that is prefilled
once, and ten flow-matching steps over its KV cache turn noise into the next fifty actions, one second at 50 Hz.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mstar import Action, Float32, Int64, Model, Tensor, each, loop, walk
from mstar.testing.toy_worlds import ImageEncoder, Policy


@dataclass
class Observation:
    cameras: np.ndarray
    task: str
    pose: np.ndarray
    seed: int = 0


class Pi05(Model):
    """Prefills images, task and pose once; denoises a chunk of actions over the prefix."""

    def __init__(self) -> None:
        self.vit, self.policy = ImageEncoder(), Policy()

    @walk
    def act(
        self,
        cameras: Float32[Tensor, "V 3 H W"],
        task: Int64[Tensor, "T"],
        pose: Float32[Tensor, "32"],
        seed: int,
    ) -> Iterator[Action]:
        views = each(cameras)
        for camera in views:
            views.collect(patches=self.vit.encode(camera))
        kv = self.policy.kv()
        self.policy.prefix(views.patches, task, pose, kv)

        s = loop(steps=10, actions=self.policy.noise(seed))
        for step in s:
            s.actions = self.policy.move(s.actions, self.policy.flow(s.actions, step, kv))
        yield Action(self.policy.finish(s.actions), rate=50)

    async def route(self, request: Observation) -> None:
        await self.act(request.cameras, self.policy.tokenize(request.task), request.pose, request.seed)


def requests() -> list[Observation]:
    rng = np.random.default_rng(0)
    cameras = rng.integers(0, 255, (6, 3, 16, 16)).astype(np.float32)
    poses = rng.integers(-9, 9, (3, 32)).astype(np.float32)
    return [
        Observation(cameras[:3], "pick up the cup", poses[0]),
        Observation(cameras[3:4], "fold the shirt", poses[1], seed=4),
        Observation(cameras[4:], "open", poses[2]),
    ]
