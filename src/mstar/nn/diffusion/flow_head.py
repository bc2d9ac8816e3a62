"""FlowHead: a diffusion or flow matching network with a diffusers scheduler, batched over requests at different steps.

A forward takes a timestep per row (continuous batching of denoising steps); the scheduler's own arithmetic then
advances each row by one step. On a device the latents stay there, and timesteps are read on the host. Shapes of latents
and conditions differ between networks, so a subclass defines the ops, including classifier-free guidance. The network
and the scheduler are loaded by `prepare` or by the first op.
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
from mstar.walk.values import to_device


class DenoisingState(State):
    """Progress of a request on its schedule, with the state of a multistep scheduler."""

    def __init__(self) -> None:
        self.steps_done = 0
        """Number of finished steps."""
        self.scheduler_state: Mapping[str, Any] = {}
        """Scheduler attributes that depend on earlier steps. The mapping is replaced, never changed."""

    def snapshot(self) -> dict[str, Any]:
        """A shallow copy: the scheduler state is immutable."""
        return dict(vars(self))


class FlowHead(Component):
    """Denoising network that `network` loads, and `scheduler`, which creates a diffusers scheduler for a schedule.

    A schedule is the number of steps of a request, or any other hashable value. The scheduler must have its timesteps
    set. `advance` is for schedulers whose steps are deterministic and independent of earlier steps.
    `advance_multistep` is for schedulers that use earlier steps, such as UniPC; it needs a DenoisingState per request.

        class Sd3(FlowHead):
            @op(batch=stacked)
            def denoise(
                self, x: Float32[Tensor, "16 H W"], text: Float32[Tensor, "L 4096"], pooled: Float32[Tensor, "2048"],
                steps: int, step: int,
            ) -> Float32[Tensor, "16 H W"]:
                velocity = self.network(x, text, pooled, self.timesteps(steps, step)).sample
                return self.advance(x, velocity, steps, step)

    For classifier-free guidance, one op returns the velocity and is called once per branch, and another op mixes the
    velocities and advances. Or the branches are rows of one op, `batch=ragged("B")`, so that a step is one call.
    """

    def __init__(self, network: Callable[[], Any], scheduler: Callable[[Any], Any]) -> None:
        self._load = network
        self._scheduler = functools.lru_cache(64)(scheduler)
        self._checked_scheduler = functools.lru_cache(64)(
            lambda schedule, *, is_multistep: _place_scheduler(
                _check_scheduler(self._scheduler(schedule), is_multistep=is_multistep), self.device
            )
        )

    @functools.cached_property
    def network(self) -> Any:
        """The loaded model, on the device of the component."""
        return self.on_device(self._load())

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    def timesteps(self, schedule: Any, step: Any) -> Tensor:
        """Inside an op: timestep of each row, [rows], on the device of the component."""
        import torch

        pairs = zip(rows(schedule), rows(step), strict=True)
        times = torch.stack([self._scheduler(row_schedule).timesteps[index] for row_schedule, index in pairs])
        return times if self.device is None else to_device(times, self.device)

    def advance(self, latents: Tensor, predicted: Tensor, schedule: Any, step: int) -> Tensor:
        """Inside an op: latents of each row after one scheduler step with the network's prediction."""
        import torch

        advanced: list[Tensor] = []
        columns = zip(latents.split(1), predicted.split(1), rows(schedule), rows(step), strict=True)
        for x, velocity, row_schedule, index in columns:
            scheduler = self._checked_scheduler(row_schedule, is_multistep=False)
            advanced.append(_run_step(scheduler, {}, velocity, scheduler.timesteps[index], x)[0])
        return torch.cat(advanced)

    def advance_multistep(
        self, latents: Tensor, predicted: Tensor, schedules: Sequence[Any], states: Sequence[DenoisingState]
    ) -> Tensor:
        """Inside an op: latents of each row after one step of a multistep scheduler."""
        import torch

        advanced: list[tuple[Tensor, Mapping[str, Any]]] = []
        for x, velocity, schedule, state in zip(latents.split(1), predicted.split(1), schedules, states, strict=True):
            scheduler = self._checked_scheduler(schedule, is_multistep=True)
            timestep = scheduler.timesteps[state.steps_done]
            advanced.append(_run_step(scheduler, state.scheduler_state, velocity, timestep, x))
        for state, (_, memory) in zip(states, advanced, strict=True):  # only now: a failed batch changes no state
            state.steps_done, state.scheduler_state = state.steps_done + 1, memory
        return torch.cat([x for x, _ in advanced])


def _run_step(
    scheduler: Any, memory: Mapping[str, Any], velocity: Tensor, time: Tensor, x: Tensor
) -> tuple[Tensor, Mapping[str, Any]]:
    """Latents after a step, and the changed scheduler attributes. The scheduler itself is not changed."""
    own = copy.copy(scheduler)
    for name, value in (vars(scheduler) | memory).items():
        setattr(own, name, [*value] if isinstance(value, list) else value)  # schedulers write into their lists
    advanced = own.step(velocity, time, x, return_dict=False)[0]
    return advanced, {name: value for name, value in vars(own).items() if value is not vars(scheduler).get(name)}


def _place_scheduler(scheduler: Any, device: Any) -> Any:
    """A scheduler for latents on a device. Some that use earlier steps copy their noise levels there in every step,
    which waits, so their noise levels are there before."""
    if device is None or not hasattr(scheduler, "model_outputs"):
        return scheduler
    placed = copy.copy(scheduler)
    placed.sigmas = scheduler.sigmas.to(device)
    return placed


def _check_scheduler(scheduler: Any, *, is_multistep: bool) -> Any:
    """Reject schedulers whose steps depend on anything but their arguments: they cannot be batched over requests."""
    import torch

    from mstar.nn.self_check import require_close

    name, fix = type(scheduler).__name__, "use one like FlowMatchEulerDiscreteScheduler or DDIMScheduler"
    start = together = single = torch.linspace(-1, 1, 8).reshape(1, 2, 2, 2)
    if hasattr(scheduler, "scale_model_input"):
        scaled = copy.deepcopy(scheduler).scale_model_input(start, scheduler.timesteps[0])
        require_close(scaled, start, f"{name} scales the input of its network, which is not supported", fix)
    stateful = copy.deepcopy(scheduler)
    memory: Mapping[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        for time in scheduler.timesteps[:4]:
            together = stateful.step(together.sin(), time, together, return_dict=False)[0]
            single, changed = _run_step(scheduler, memory, single.sin(), time, single)
            memory = changed if is_multistep else memory
    what = "is random" if is_multistep else "is random, or depends on earlier steps"
    require_close(single, together, f"a step of {name} {what}", fix)
    return scheduler
