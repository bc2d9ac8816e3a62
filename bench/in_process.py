"""A model served in this process, on one thread, and how long things take there."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mstar.frontend.actor import FrontendActor

NAME = "model"
"""What it is called there."""


@contextmanager
def one_thread() -> Generator[None]:
    """All that is computed is computed on one thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@contextmanager
def serve_in_process(model: Any) -> Generator[FrontendActor]:
    """A front end of a deployment that serves a model as `NAME`, in a process that is as a server's."""
    from mstar import process_tuning
    from mstar.frontend.actor import FrontendActor
    from mstar.launch.in_process import InProcessLauncher
    from mstar.plan.compile import plan
    from mstar.plan.planned_model import PlannedModel
    from mstar.wire.messages import Peer

    with InProcessLauncher({NAME: PlannedModel(model, plan(model.graphs()))}) as deployment:
        front_end = FrontendActor(deployment.actor_loop, Peer("front", 0), deployment.conductors)
        deployment.add_frontend(front_end)
        process_tuning.freeze_heap()
        yield front_end


def time_wall(run: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    begun = time.perf_counter()
    came = run(*given)
    return time.perf_counter() - begun, came


class Elapsed(NamedTuple):
    """Duration of one call."""

    wall_s: float
    cpu_s: float
    """CPU time of this process, all threads."""


def time_wall_and_cpu(run: Callable[..., Any], *given: Any) -> tuple[Elapsed, Any]:
    """Duration of a call, and its result. Time that the call waits counts in `wall_s` only."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    result = run(*given)
    return Elapsed(time.perf_counter() - begun, time.process_time() - begun_cpu), result
