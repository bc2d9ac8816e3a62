"""pi0.5: a vision-language-action (VLA) policy, PaliGemma with an action expert.

Components: `processor` (normalization, tokenizer), `vision_encoder` (SigLIP) and `policy` (Gemma prefix and action
expert). The walk encodes the cameras, prefills the prefix (images, task, robot state) once, and runs ten flow-matching
steps over it to produce a chunk of 50 actions. Real-time chunking: a new chunk can continue the one that the robot is
executing. It generates no text, so high-level planning happens in the client.
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
"""Control rate of most of its robots, in actions per second."""


class Pi05(Model):
    """Serves action requests. `weights` is a folder in the openpi or lerobot layout, or `hub:NAME`."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.vision_encoder, self.policy = (
            Processor(self.checkpoint),
            VisionEncoder(self.checkpoint),
            Policy(self.checkpoint),
        )

    @walk
    def act(self, request: ActionRequest, steps: int) -> Iterator[Action]:
        """Emit the next action chunk."""
        views, tokens = self.processor.process(request)
        actions = self.flow(views, tokens, *self.processor.init_chunk(request), steps)
        yield Action(self.processor.unnormalize(actions), rate=ACTION_RATE_HZ)

    def flow(self, views: Any, tokens: Any, noise: Any, previous_chunk: Any, guidance_weights: Any, steps: Any) -> Any:
        """Sub-walk of the networks: noise to normalized actions."""
        cameras = each(views)
        for view in cameras:
            cameras.collect(patches=self.vision_encoder.image(view))
        prefix = self.policy.state(PrefixCache)
        self.policy.prefill(cameras.patches, tokens, prefix)

        s = loop(steps=steps, actions=noise)
        for step in s:
            s.actions = self.policy.denoise(s.actions, previous_chunk, guidance_weights, prefix, steps, step)
        return s.actions

    async def route(self, request: ActionRequest) -> None:
        """Check the observation and act."""
        self.processor.validate_observation(request)
        await self.act(request, self.checkpoint.config.get("num_inference_steps", 10))

    def robot_spec(self) -> Mapping[str, Any]:
        """Names of the robot state and cameras, and shape and rate of the actions.

        Cameras are optional, of any size.
        """
        state, cameras = self.checkpoint.observation_names
        actions = {
            "dtype": "float32",
            "shape": [self.checkpoint.chunk_shape[0], self.checkpoint.vector_sizes["actions"]],
        }
        return {"cameras": [*cameras], "state": state, "actions": actions, "rate": ACTION_RATE_HZ}
