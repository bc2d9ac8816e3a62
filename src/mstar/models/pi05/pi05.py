"""pi0.5: a robot policy that sees, reads its task, and moves.

PaliGemma with an action expert. What the cameras see, the task and the robot's pose make a prefix that is read once;
ten flow steps over it turn noise into the next fifty actions. While a robot still carries out a chunk, the next can be
made to go on from it (real-time chunking). It is not asked for words: who plans a task in steps does so before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mstar import Action, Model, each, loop, walk
from mstar.asks import Acting
from mstar.models.pi05.checkpoint import PUBLISHED, Checkpoint
from mstar.models.pi05.policy import Eye, Policy, Prefix
from mstar.models.pi05.reader import Reader

RATE = 50
"""How many actions a second most of its robots carry out."""


class Pi05(Model):
    """A reader, an eye and a policy. `weights` is a folder as openpi or lerobot write it, or `hub:` and a name."""

    def __init__(self, weights: str = PUBLISHED) -> None:
        self.checkpoint = Checkpoint(weights)
        self.reader, self.eye, self.policy = Reader(self.checkpoint), Eye(self.checkpoint), Policy(self.checkpoint)

    @walk
    def act(self, acting: Acting, steps: int) -> Iterator[Action]:
        """What to do next."""
        views, tokens = self.reader.read(acting)
        actions = self.flow(views, tokens, *self.reader.begin(acting), steps)
        yield Action(self.reader.finish(actions), rate=RATE)

    def flow(self, views: Any, tokens: Any, noise: Any, left: Any, trust: Any, steps: Any) -> Any:
        """Noise becomes actions: the part of the walk that is network."""
        seen = each(views)
        for view in seen:
            seen.collect(patches=self.eye.image(view))
        prefix = self.policy.state(Prefix)
        self.policy.read(seen.patches, tokens, prefix)

        s = loop(steps=steps, actions=noise)
        for step in s:
            s.actions = self.policy.move(s.actions, left, trust, prefix, steps, step)
        return s.actions

    async def route(self, request: Acting) -> None:
        """Act."""
        self.reader.refuse_strange(request)
        await self.act(request, self.checkpoint.config.get("num_inference_steps", 10))

    def robot(self) -> Mapping[str, Any]:
        """What its robot is like. Cameras may be absent, and pictures may have any size."""
        pose, cameras = self.checkpoint.names
        actions = {"dtype": "float32", "shape": [self.checkpoint.chunk[0], self.checkpoint.sizes["actions"]]}
        return {"cameras": [*cameras], "state": pose, "actions": actions, "rate": RATE}
