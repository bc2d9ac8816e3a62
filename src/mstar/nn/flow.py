"""FlowHead: a network that denoises, with a library's scheduler, where every request is at a step of its own.

A forward takes the timesteps of its rows as they are; afterwards the scheduler's own arithmetic takes each row one step
further. It knows neither latents nor conditions: their shapes differ from network to network, so ops are written in a
subclass, which says what it is given. The network and the scheduler are loaded where an op first runs.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from mstar.walk.batching import rows
from mstar.walk.component import Component
from mstar.walk.types import Tensor


class FlowHead(Component):
    """A denoising network that `network` loads, and `scheduler`, which makes a diffusers scheduler for a wish.

    A wish is what a request says of its schedule: the number of steps, or anything hashable. The scheduler has its
    timesteps set, and must do each step by itself: neither random, nor looking at earlier steps.

        class Sd3(FlowHead):
            @op(batch=stacked)
            def denoise(
                self, x: Float32[Tensor, "16 H W"], text: Float32[Tensor, "L 4096"], pooled: Float32[Tensor, "2048"],
                steps: int, step: int,
            ) -> Float32[Tensor, "16 H W"]:
                velocity = self.network(x, text, pooled, self.times(steps, step)).sample
                return self.advance(x, velocity, steps, step)

    For guidance, one op gives the velocity, and is called for each branch; another mixes what they gave and advances.
    """

    def __init__(self, network: Callable[[], Any], scheduler: Callable[[Any], Any]) -> None:
        self._load = network
        self._scheduler = functools.lru_cache(64)(lambda wish: _tried(scheduler(wish)))

    @functools.cached_property
    def network(self) -> Any:
        """The library's model."""
        return self._load().eval().requires_grad_(requires_grad=False)

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    def times(self, wish: Any, step: int) -> Tensor:
        """Inside an op: the timestep of each row, [rows]."""
        import torch

        return torch.stack([self._scheduler(w).timesteps[s] for w, s in zip(rows(wish), rows(step), strict=True)])

    def advance(self, latents: Tensor, predicted: Tensor, wish: Any, step: int) -> Tensor:
        """Inside an op: the latents of each row one step further, given what the network predicted for them."""
        import torch

        moved: list[Tensor] = []
        for x, towards, w, s in zip(latents.split(1), predicted.split(1), rows(wish), rows(step), strict=True):
            scheduler = copy.copy(self._scheduler(w))  # it counts its steps; the one that is kept never begins
            moved += scheduler.step(towards, scheduler.timesteps[s], x, return_dict=False)[:1]
        return torch.cat(moved)


def _tried(scheduler: Any) -> Any:
    """The scheduler, if its steps need nothing but what they are given. Other steps would be wrong among requests."""
    import torch

    from mstar.nn.trial import refuse_unlike

    name, fix = type(scheduler).__name__, "use one like FlowMatchEulerDiscreteScheduler or DDIMScheduler"
    start = together = single = torch.linspace(-1, 1, 8).reshape(1, 2, 2, 2)
    if hasattr(scheduler, "scale_model_input"):
        scaled = copy.deepcopy(scheduler).scale_model_input(start, scheduler.timesteps[0])
        refuse_unlike(scaled, start, f"{name} scales what its network is given", fix)
    counting = copy.deepcopy(scheduler)
    with torch.random.fork_rng(devices=[]):
        for time in scheduler.timesteps[:4]:
            together = counting.step(together.sin(), time, together, return_dict=False)[0]
            single = copy.deepcopy(scheduler).step(single.sin(), time, single, return_dict=False)[0]
    refuse_unlike(single, together, f"a step of {name} is random, or depends on the steps before it", fix)
    return scheduler
