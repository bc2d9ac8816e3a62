"""pi0.5: a robot policy that sees, reads its task, and moves.

PaliGemma with an action expert. What the cameras see, the task and the robot's pose make a prefix that is read once;
ten flow steps over it turn noise into the next fifty actions. While a robot still carries out a chunk, the next can be
made to go on from it (real-time chunking). It is not asked for words: who plans a task in steps does so before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mstar import Action, Model, each, loop, walk
from mstar.models.pi05.checkpoint import DEFAULT_WEIGHTS, Checkpoint
from mstar.models.pi05.policy import Policy, PrefixCache, VisionEncoder
from mstar.models.pi05.processor import Processor
from mstar.requests import ActionRequest

ACTION_RATE_HZ = 50
"""How many actions a second most of its robots carry out."""


class Pi05(Model):
    """A reader, an eye and a policy. `weights` is a folder as openpi or lerobot write it, or `hub:` and a name."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.vision_encoder, self.policy = (
            Processor(self.checkpoint),
            VisionEncoder(self.checkpoint),
            Policy(self.checkpoint),
        )

    @walk
    def act(self, request: ActionRequest, steps: int) -> Iterator[Action]:
        """What to do next."""
        views, tokens = self.processor.process(request)
        actions = self.flow(views, tokens, *self.processor.init_chunk(request), steps)
        yield Action(self.processor.unnormalize(actions), rate=ACTION_RATE_HZ)

    def flow(self, views: Any, tokens: Any, noise: Any, previous_chunk: Any, guidance_weights: Any, steps: Any) -> Any:
        """Noise becomes actions: the part of the walk that is network."""
        seen = each(views)
        for view in seen:
            seen.collect(patches=self.vision_encoder.image(view))
        prefix = self.policy.state(PrefixCache)
        self.policy.prefill(seen.patches, tokens, prefix)

        s = loop(steps=steps, actions=noise)
        for step in s:
            s.actions = self.policy.denoise(s.actions, previous_chunk, guidance_weights, prefix, steps, step)
        return s.actions

    async def route(self, request: ActionRequest) -> None:
        """Act."""
        self.processor.validate_observation(request)
        await self.act(request, self.checkpoint.config.get("num_inference_steps", 10))

    def robot_spec(self) -> Mapping[str, Any]:
        """What its robot is like. Cameras may be absent, and pictures may have any size."""
        pose, cameras = self.checkpoint.observation_names
        actions = {
            "dtype": "float32",
            "shape": [self.checkpoint.chunk_shape[0], self.checkpoint.vector_sizes["actions"]],
        }
        return {"cameras": [*cameras], "state": pose, "actions": actions, "rate": ACTION_RATE_HZ}
