"""Hopper: the published policy of pybullet 3.2.7 for HopperBulletEnv-v0, at 50 actions per second.

One component, `policy`, a multilayer perceptron with two hidden layers (10,000 parameters, zlib license, in this
folder). It maps the observation of the environment to three joint torques. The client runs the robot and its
environment, for example `bench.multimodal.hopper`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mstar import Action, Float32, Model, Tensor, walk
from mstar.models.hopper.policy import Policy
from mstar.requests import ActionRequest

ACTION_RATE_HZ = 50
OBSERVATION_SIZE = 15
JOINT_COUNT = 3


class Hopper(Model):
    """Serves the policy. `weights` is a safetensors file."""

    def __init__(self, weights: str = str(Path(__file__).with_name("policy.safetensors"))) -> None:
        self.policy = Policy(weights)

    @walk
    def act(self, state: Float32[Tensor, "15"]) -> Iterator[Action]:
        """Emit one action."""
        yield Action(self.policy.torques(state), rate=ACTION_RATE_HZ)

    async def route(self, request: ActionRequest) -> None:
        """Act on one observation. The prompt is ignored: the policy always hops forward."""
        await self.act(request.observation["state"])

    def robot_spec(self) -> Mapping[str, Any]:
        """Shapes of observation and action, and the action rate."""
        observation = {"dtype": "float32", "shape": [OBSERVATION_SIZE]}
        action = {"dtype": "float32", "shape": [1, JOINT_COUNT]}
        return {"observation": {"state": observation}, "actions": action, "rate": ACTION_RATE_HZ}

    def warmup_requests(self) -> Sequence[Any]:
        """One observation of a robot at rest."""
        import numpy as np

        return [ActionRequest({"state": np.zeros(OBSERVATION_SIZE, np.float32)})]
