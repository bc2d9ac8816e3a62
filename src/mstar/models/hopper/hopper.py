"""Hopper: what a robot with one leg does next, fifty times a second.

The policy is the one that pybullet 3.2.7 has for its HopperBulletEnv-v0 (zlib licence, beside this file): two hidden
layers, ten thousand numbers. It sees what that environment shows and says how strongly three joints turn. The robot and
its world are the client's: `bench.multimodal.hopper` has both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mstar import Action, Float32, Model, Tensor, walk
from mstar.models.hopper.policy import Policy
from mstar.requests import ActionRequest

ACTION_RATE_HZ = 50
OBSERVATION_SIZE, JOINT_COUNT = 15, 3


class Hopper(Model):
    """A policy. `weights` is a safetensors file."""

    def __init__(self, weights: str = str(Path(__file__).with_name("policy.safetensors"))) -> None:
        self.policy = Policy(weights)

    @walk
    def act(self, state: Float32[Tensor, "15"]) -> Iterator[Action]:
        """One action."""
        yield Action(self.policy.torques(state), rate=ACTION_RATE_HZ)

    async def route(self, request: ActionRequest) -> None:
        """Act. The task is to hop forward, whatever the prompt says."""
        await self.act(request.observation["state"])

    def robot_spec(self) -> Mapping[str, Any]:
        """What it sees and does, and how often."""
        seen, done = {"dtype": "float32", "shape": [OBSERVATION_SIZE]}, {"dtype": "float32", "shape": [1, JOINT_COUNT]}
        return {"observation": {"state": seen}, "actions": done, "rate": ACTION_RATE_HZ}

    def warmup_requests(self) -> Sequence[Any]:
        """A robot that stands still."""
        import numpy as np

        return [ActionRequest({"state": np.zeros(OBSERVATION_SIZE, np.float32)})]
