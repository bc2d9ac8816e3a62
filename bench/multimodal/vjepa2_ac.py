"""V-JEPA 2-AC: rollouts, plans and what is seen, against the published code; one thread, equal results.

Pictures of 64 x 64 pixels in 16 patches, an encoder and a predictor of four layers of 96. The published code cannot
be installed, so what it computes is written down again, waste included (`tests/models/vjepa2/vjepa2_published.py`; a
test holds it against golden data, to which it is equal to the last bit). Rollouts and plans of ours are served, by a
deployment in this process, and timed from the request to its end; both sides see their pictures. Seconds are of the
process's CPU.

Most of the gain is removed work. A rollout of H actions reads H frames where H (H + 1) / 2 were read: x4.5 of H = 8,
x1.5 of H = 2. Some is a mask, for which attention takes the slow way; the head on all frames but the last; layers'
first product in three parts, with their turns; and poses, turned one by one. The rest is that all layers are one
call, a few rows at a time, which stay in a core's cache. Batching gives nothing here, since both sides take all plans
as one batch. Of a clip of eight frames one is encoded.

The curve has both dtypes of ours against the published code in float32, as in the comparison that the paper's x12.5
is from; bfloat16 rows say so. It passes x12.5 between 24 and 32 steps, in both dtypes.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench.claims import Row
from bench.in_process import NAME, one_thread, serve_in_process, time_cpu
from mstar.frontend.actor import FrontendActor
from mstar.models.vjepa2.vjepa2_ac import VJepa2AC
from mstar.requests import ActionRequest, RolloutRequest

PLANS, STEPS, REPEATS = 64, 8, 2
CURVE, HORIZONS = 8, (2, 4, 8, 16, 24, 32)
"""Number of rollouts of each of these lengths."""
DTYPES = ("float32", "bfloat16")
SEARCH = {"candidates": 64, "rounds": 5, "elites": 10}
TOLERANCE, TIE = 1e-4, 1e-5


def served(front_end: FrontendActor, request: Any) -> list[np.ndarray]:
    """What was emitted last of each kind."""
    last = {type(emission).__name__: emission.value for emission in front_end.open_stream(NAME, request)}
    return [np.asarray(last[kind]) for kind in sorted(last)]


def random_frames(seed: int, frames: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, 64, 64, 3), np.uint8)


def rollout_request(seed: int, plans: int, steps: int) -> RolloutRequest:
    draw = np.random.default_rng(seed)
    actions = tuple(draw.normal(0, 0.05, (steps, plans, 7)).astype(np.float32))
    return RolloutRequest({"image": random_frames(seed), "pose": np.full(7, 0.1, np.float32)}, actions)


class Reference:
    """The published code, asked as ours is."""

    def __init__(self, tensors: Any) -> None:
        from tests.models.vjepa2.vjepa2_published import Published

        self.network = Published(tensors)

    def encode(self, clip: np.ndarray) -> Any:
        """What every frame of a clip shows."""
        from mstar.models.vjepa2.vision_encoder import preprocess_images

        return self.network.frames(preprocess_images(clip, 64, 64).transpose(0, 1))

    def imagine(self, request: RolloutRequest) -> list[Any]:
        import torch

        actions = torch.tensor(np.stack(request.actions)).transpose(0, 1)
        pose = torch.tensor(request.observation["pose"]).expand(len(actions), -1)
        latents, poses = self.network.rollout(self.encode(request.observation["image"])[-1], actions, pose)
        return [poses[:, -1], latents[:, -1]]

    def act(self, request: ActionRequest) -> list[Any]:
        """The plan; nothing if two plans are so near to each other that rounding decides which is kept."""
        import torch

        from mstar.models.vjepa2.cem import CemParams, CrossEntropy

        observation = request.observation
        search = CemParams(request.horizon, seed=request.seed, **SEARCH)
        noise = torch.stack([CrossEntropy().noise(step, search) for step in range(search.rounds)])
        now, goal = (self.encode(observation[name])[-1] for name in ("image", "goal"))
        plan, rounds = self.network.cem(now, torch.tensor(observation["pose"]), goal, noise, search.elites)
        ordered = [costs.sort().values for _, costs, _ in rounds]
        is_tie = any(costs[search.elites] - costs[search.elites - 1] < TIE for costs in ordered)
        return [] if is_tie else [plan]


def time_and_compare(
    theirs: Callable[[Any], Any], ours: Callable[[Any], Any], given: Sequence[Any]
) -> list[list[float]]:
    """Seconds of both, by turns. Raises if they do not give the same."""
    took: list[list[float]] = [[], []]
    for one in given:
        (first, wanted), (second, got) = time_cpu(theirs, one), time_cpu(ours, one)
        for value, other in zip(wanted, got, strict=False):
            if np.abs(np.asarray(value) - np.asarray(other)).max() > TOLERANCE:
                raise RuntimeError("what is served is not what the published code computes")
        took[0].append(first)
        took[1].append(second)
    return took


def ratio_rows(what: str, took: Sequence[Sequence[float]], ours: str = "served") -> list[Row]:
    times = [one / other for one, other in zip(*took, strict=True)]
    return [
        Row(f"{what}, as published", "s", took[0]),
        Row(f"{what}, {ours}", "s", took[1]),
        Row("  times faster", "x", times),
    ]


def curve(reference: Reference, asks: dict[str, Callable[[Any], Any]]) -> list[Row]:
    """How many times faster rollouts of several lengths are, by dtype of ours."""
    times: dict[tuple[int, str], list[float]] = {(steps, dtype): [] for steps in HORIZONS for dtype in DTYPES}
    for steps in HORIZONS:
        for seed in range(REPEATS):
            request = rollout_request(seed, CURVE, steps)
            theirs = time_cpu(reference.imagine, request)[0]
            for dtype, ask in asks.items():
                times[steps, dtype].append(theirs / min(time_cpu(ask, request)[0] for _ in range(2)))
    return [
        Row(f"  {CURVE} rollouts of {steps} in {dtype}, times the published float32", "x", results)
        for (steps, dtype), results in times.items()
    ]


def rows(*, has_curve: bool = True) -> Sequence[Row]:
    """Rollouts, plans, what is seen of a clip, and the curve."""
    from tests.models.vjepa2 import vjepa2_tiny as tiny

    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved, tensors = tiny.save_large(Path(folder) / "ac")
        models = {dtype: VJepa2AC(saved, dtype=dtype) for dtype in DTYPES}
        fronts = {dtype: stack.enter_context(serve_in_process(model)) for dtype, model in models.items()}
        reference, asks = Reference(tensors), {dtype: functools.partial(served, one) for dtype, one in fronts.items()}
        exact, encoder = asks["float32"], models["float32"].encoder
        for ask in asks.values():
            ask(rollout_request(0, PLANS, STEPS))  # warm
        plans = []
        for seed in range(REPEATS):
            observation = {
                "image": random_frames(seed),
                "goal": random_frames(seed + 50),
                "pose": np.full(7, 0.1, np.float32),
            }
            plans.append(ActionRequest(observation | SEARCH, seed=seed, horizon=2))
        clips = [random_frames(seed, 8) for seed in range(16)]
        return [
            *ratio_rows(
                f"{PLANS} rollouts of {STEPS}",
                time_and_compare(reference.imagine, exact, [rollout_request(1, PLANS, STEPS)] * REPEATS),
            ),
            *ratio_rows("a plan, 64 x 2 x 5", time_and_compare(reference.act, exact, plans)),
            *ratio_rows(
                "the last of eight frames",
                time_and_compare(
                    lambda clip: reference.encode(clip)[-1:], lambda clip: encoder.encode_frame(clip[-1])[None], clips
                ),
                "as an op",
            ),
            *(curve(reference, asks) if has_curve else ()),
        ]


if __name__ == "__main__":
    from bench.claims import print_table

    print_table(rows())
