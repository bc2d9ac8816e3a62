"""FlowHead: a network that denoises, with a library's scheduler, where every request is at a step of its own.

A forward takes the timesteps of its rows as they are; afterwards the scheduler's own arithmetic takes each row one step
further. It knows neither latents nor conditions: their shapes differ from network to network, so ops are written in a
subclass, which says what it is given. The network and the scheduler are loaded where an op first runs.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mstar.walk.batching import rows
from mstar.walk.component import Component
from mstar.walk.states import State
from mstar.walk.types import Tensor


class DenoisingState(State):
    """How far a request has come on its schedule, and what its scheduler must know of that."""

    def __init__(self) -> None:
        self.steps_done = 0
        """So many steps."""
        self.scheduler_state: Mapping[str, Any] = {}
        """What its scheduler remembers of them. It is replaced, never changed."""

    def snapshot(self) -> dict[str, Any]:
        """It as it is: what is remembered need not be copied."""
        return dict(vars(self))


class FlowHead(Component):
    """A denoising network that `network` loads, and `scheduler`, which makes a diffusers scheduler for a wish.

    A wish is what a request says of its schedule: the number of steps, or anything hashable. The scheduler has its
    timesteps set. `advance` is for one that does each step by itself: neither random, nor looking at earlier steps.
    `advance_multistep` is for one that looks back too, as UniPC does: a request then has a DenoisingState.

        class Sd3(FlowHead):
            @op(batch=stacked)
            def denoise(
                self, x: Float32[Tensor, "16 H W"], text: Float32[Tensor, "L 4096"], pooled: Float32[Tensor, "2048"],
                steps: int, step: int,
            ) -> Float32[Tensor, "16 H W"]:
                velocity = self.network(x, text, pooled, self.timesteps(steps, step)).sample
                return self.advance(x, velocity, steps, step)

    For guidance, one op gives the velocity, and is called for each branch; another mixes what they gave and advances.
    Or branches are rows of one op, `batch=ragged("B")`, which mixes and advances too: then a step is one call.
    """

    def __init__(self, network: Callable[[], Any], scheduler: Callable[[Any], Any]) -> None:
        self._load = network
        self._scheduler = functools.lru_cache(64)(scheduler)
        self._checked_scheduler = functools.lru_cache(64)(
            lambda wish, *, looks_back: _check_scheduler(self._scheduler(wish), is_multistep=looks_back)
        )

    @functools.cached_property
    def network(self) -> Any:
        """The library's model."""
        return self._load().eval().requires_grad_(requires_grad=False)

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    def timesteps(self, schedule: Any, step: Any) -> Tensor:
        """Inside an op: the timestep of each row, [rows]."""
        import torch

        return torch.stack([self._scheduler(w).timesteps[s] for w, s in zip(rows(schedule), rows(step), strict=True)])

    def advance(self, latents: Tensor, predicted: Tensor, schedule: Any, step: int) -> Tensor:
        """Inside an op: the latents of each row one step further, given what the network predicted for them."""
        import torch

        moved: list[Tensor] = []
        for x, towards, w, s in zip(latents.split(1), predicted.split(1), rows(schedule), rows(step), strict=True):
            scheduler = self._checked_scheduler(w, looks_back=False)
            moved.append(_run_step(scheduler, {}, towards, scheduler.timesteps[s], x)[0])
        return torch.cat(moved)

    def advance_multistep(
        self, latents: Tensor, predicted: Tensor, schedules: Sequence[Any], states: Sequence[DenoisingState]
    ) -> Tensor:
        """Inside an op: the latents of each row one step further on its schedule."""
        import torch

        moved: list[tuple[Tensor, Mapping[str, Any]]] = []
        for x, towards, wish, way in zip(latents.split(1), predicted.split(1), schedules, states, strict=True):
            scheduler = self._checked_scheduler(wish, looks_back=True)
            moved.append(_run_step(scheduler, way.scheduler_state, towards, scheduler.timesteps[way.steps_done], x))
        for way, (_, memory) in zip(states, moved, strict=True):  # only now, so that a batch that fails moves nobody
            way.steps_done, way.scheduler_state = way.steps_done + 1, memory
        return torch.cat([x for x, _ in moved])


def _run_step(
    scheduler: Any, memory: Mapping[str, Any], towards: Tensor, time: Tensor, x: Tensor
) -> tuple[Tensor, Mapping[str, Any]]:
    """Latents after a step, and what a scheduler remembers then. The one that is given never begins."""
    own = copy.copy(scheduler)
    for name, value in (vars(scheduler) | memory).items():
        setattr(own, name, [*value] if isinstance(value, list) else value)  # it writes into its lists
    moved = own.step(towards, time, x, return_dict=False)[0]
    return moved, {name: value for name, value in vars(own).items() if value is not vars(scheduler).get(name)}


def _check_scheduler(scheduler: Any, *, is_multistep: bool) -> Any:
    """The scheduler, if its steps need nothing but what they are given. Other steps would be wrong among requests."""
    import torch

    from mstar.nn.self_check import require_close

    name, fix = type(scheduler).__name__, "use one like FlowMatchEulerDiscreteScheduler or DDIMScheduler"
    start = together = single = torch.linspace(-1, 1, 8).reshape(1, 2, 2, 2)
    if hasattr(scheduler, "scale_model_input"):
        scaled = copy.deepcopy(scheduler).scale_model_input(start, scheduler.timesteps[0])
        require_close(scaled, start, f"{name} scales what its network is given", fix)
    counting, memory = copy.deepcopy(scheduler), dict[str, Any]()
    with torch.random.fork_rng(devices=[]):
        for time in scheduler.timesteps[:4]:
            together = counting.step(together.sin(), time, together, return_dict=False)[0]
            single, kept = _run_step(scheduler, memory, single.sin(), time, single)
            memory = kept if is_multistep else memory
    what = "is random" if is_multistep else "is random, or depends on the steps before it"
    require_close(single, together, f"a step of {name} {what}", fix)
    return scheduler
