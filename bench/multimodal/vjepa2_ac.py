"""V-JEPA 2-AC: rollouts, plans and encoded frames against our reimplementation of the published loop, equal results.

The published code is in no package, so the baseline is `tests/models/vjepa2/vjepa2_published.py`: our reimplementation
with the same forward passes, unneeded work included. `tests/models/vjepa2/test_vjepa2_ac.py` checks it against golden
data of the published code. Its speed was never compared with that of the published code, which cannot run here. Ours is
served by a deployment in this process, from the request to its end; both sides encode their images. One thread.

Most of the gain is removed work. A rollout of H actions reads H frames instead of H (H + 1) / 2: x4.5 for H = 8, x1.5
for H = 2. The rest is attention without a mask, the head on the last frame only, one product per layer for all tokens,
and poses updated as one batch. Batching gives nothing, since both sides run all plans as one batch. Of a clip of eight
frames one is encoded.

Workload: the published encoder has 40 layers of 1408 (MLP 6144) and the predictor 24 of 1024 (MLP 4096), heads of 64,
256 patches per frame. The fused kernels run float32 only up to an MLP width of 512, so the published float32 networks
never use them. The figures with a target are therefore measured at width 192: MLP 768, above that limit, heads of 64,
four layers, 16 patches. Width 96 (MLP 384), where the fused kernels run, stands beside them without a target.
`vjepa2-ac` adds width 512 with 64 patches, nearer to the published size, and a curve over horizons.

The curve has both dtypes of ours against the float32 baseline. bfloat16 uses the fused kernels at every width on
processors without bf16 instructions.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.claims import Row
from bench.in_process import NAME, Elapsed, one_thread, serve_in_process, time_wall_and_cpu
from bench.multimodal.speedup import speedup_rows
from mstar.frontend.actor import FrontendActor
from mstar.models.vjepa2.vjepa2_ac import VJepa2AC
from mstar.requests import ActionRequest, RolloutRequest

PLANS, STEPS, REPEATS = 64, 8, 2
CURVE, HORIZONS = 8, (2, 4, 8, 16, 24, 32)
"""Number of rollouts of each of these lengths."""
DTYPES = ("float32", "bfloat16")
SEARCH = {"candidates": 64, "rounds": 5, "elites": 10}
TOLERANCE, TIE = 1e-4, 1e-5


@dataclass(frozen=True)
class Size:
    """Sizes of both networks, four layers each, and the side of the images in pixels."""

    width: int
    heads: int
    side: int = 64

    @property
    def config(self) -> dict[str, Any]:
        """The keys of config.json."""
        sizes = {"hidden_size": self.width, "num_hidden_layers": 4, "num_attention_heads": self.heads}
        return {"crop_size": self.side, **sizes} | {f"pred_{name}": size for name, size in sizes.items()}


WIDE, FUSED, WIDEST = Size(192, 3), Size(96, 4), Size(512, 8, 128)


def served(front_end: FrontendActor, request: Any) -> list[np.ndarray]:
    """The last emission of each kind."""
    last = {type(emission).__name__: emission.value for emission in front_end.open_stream(NAME, request)}
    return [np.asarray(last[kind]) for kind in sorted(last)]


def random_frames(seed: int, side: int, frames: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, side, side, 3), np.uint8)


def rollout_request(seed: int, plans: int, steps: int, side: int) -> RolloutRequest:
    draw = np.random.default_rng(seed)
    actions = tuple(draw.normal(0, 0.05, (steps, plans, 7)).astype(np.float32))
    return RolloutRequest({"image": random_frames(seed, side), "pose": np.full(7, 0.1, np.float32)}, actions)


def plan_request(seed: int, side: int) -> ActionRequest:
    images = {"image": random_frames(seed, side), "goal": random_frames(seed + 50, side)}
    return ActionRequest(images | {"pose": np.full(7, 0.1, np.float32)} | SEARCH, seed=seed, horizon=2)


class Reference:
    """The reimplementation, behind the same requests as ours."""

    def __init__(self, tensors: Any, size: Size) -> None:
        from tests.models.vjepa2.vjepa2_published import Published

        self.side = size.side
        self.network = Published(tensors, size.heads, size.side // 16)

    def encode(self, clip: np.ndarray) -> Any:
        """Embeddings of every frame of a clip."""
        from mstar.models.vjepa2.vision_encoder import preprocess_images

        return self.network.frames(preprocess_images(clip, self.side, self.side).transpose(0, 1))

    def imagine(self, request: RolloutRequest) -> list[Any]:
        import torch

        actions = torch.tensor(np.stack(request.actions)).transpose(0, 1)
        pose = torch.tensor(request.observation["pose"]).expand(len(actions), -1)
        latents, poses = self.network.rollout(self.encode(request.observation["image"])[-1], actions, pose)
        return [poses[:, -1], latents[:, -1]]

    def act(self, request: ActionRequest) -> list[Any]:
        """The plan; nothing if two candidates are so near to each other that rounding decides which is kept."""
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


@dataclass(frozen=True)
class Contestants:
    """Both sides with the same weights."""

    reference: Reference
    models: dict[str, VJepa2AC]
    ask: dict[str, Callable[[Any], list[np.ndarray]]]
    """Ours, by dtype."""


@contextmanager
def contestants(size: Size, dtypes: Sequence[str] = DTYPES[:1]) -> Generator[Contestants]:
    """Both sides, warm."""
    from tests.models.vjepa2 import vjepa2_tiny as tiny

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        saved, tensors = tiny.save_random(Path(folder) / "ac", **size.config)
        models = {dtype: VJepa2AC(saved, dtype=dtype) for dtype in dtypes}
        fronts = {dtype: stack.enter_context(serve_in_process(model)) for dtype, model in models.items()}
        both = Contestants(
            Reference(tensors, size), models, {dtype: functools.partial(served, one) for dtype, one in fronts.items()}
        )
        for ask in (both.reference.imagine, *both.ask.values()):
            ask(rollout_request(0, PLANS, 1, size.side))
        yield both


def time_and_compare(
    theirs: Callable[[Any], Any], ours: Callable[[Any], Any], given: Sequence[Any]
) -> list[list[Elapsed]]:
    """Durations of both, by turns. Raises if their results differ."""
    took: list[list[Elapsed]] = [[], []]
    for one in given:
        (first, wanted), (second, got) = time_wall_and_cpu(theirs, one), time_wall_and_cpu(ours, one)
        for value, other in zip(wanted, got, strict=False):
            if np.abs(np.asarray(value) - np.asarray(other)).max() > TOLERANCE:
                raise RuntimeError("the served result differs from that of the reimplementation")
        took[0].append(first)
        took[1].append(second)
    return took


def compare_rollouts(both: Contestants, size: Size, plans: int, repeats: int, name: str) -> list[Row]:
    requests = [rollout_request(1, plans, STEPS, size.side)] * repeats
    took = time_and_compare(both.reference.imagine, both.ask["float32"], requests)
    return speedup_rows(f"{plans} rollouts of {STEPS}{name}", *took)


def compare_plans(both: Contestants, size: Size, repeats: int, name: str = "") -> list[Row]:
    requests = [plan_request(seed, size.side) for seed in range(repeats)]
    took = time_and_compare(both.reference.act, both.ask["float32"], requests)
    return speedup_rows(f"a plan, 64 x 2 x 5{name}", *took)


def compare_frames(both: Contestants, size: Size, name: str = "") -> list[Row]:
    reference, encoder = both.reference, both.models["float32"].encoder
    took = time_and_compare(
        lambda clip: reference.encode(clip)[-1:],
        lambda clip: encoder.encode_frame(clip[-1])[None],
        [random_frames(seed, size.side, 8) for seed in range(16)],
    )
    return speedup_rows(f"the last of eight frames{name}", *took, "as an op")


def curve(both: Contestants, size: Size) -> list[Row]:
    """Speed-up of rollouts by length and dtype of ours."""
    times: dict[tuple[int, str], list[float]] = {(steps, dtype): [] for steps in HORIZONS for dtype in DTYPES}
    for steps in HORIZONS:
        for seed in range(REPEATS):
            request = rollout_request(seed, CURVE, steps, size.side)
            theirs = time_wall_and_cpu(both.reference.imagine, request)[0].wall_s
            for dtype, ask in both.ask.items():
                times[steps, dtype].append(theirs / time_wall_and_cpu(ask, request)[0].wall_s)
    return [
        Row(f"  {CURVE} rollouts of {steps} in {dtype}, times the reimplementation in float32", "x", results)
        for (steps, dtype), results in times.items()
    ]


def rows(*, is_long: bool = True) -> Sequence[Row]:
    """Rollouts, plans and encoded frames at width 192; beside them with fused kernels; if long, wider and the curve."""
    made: list[Row] = []
    with one_thread():
        with contestants(WIDE, DTYPES if is_long else DTYPES[:1]) as both:
            made += compare_rollouts(both, WIDE, PLANS, REPEATS, "")
            made += compare_plans(both, WIDE, REPEATS)
            made += compare_frames(both, WIDE)
            made += curve(both, WIDE) if is_long else ()
        fused = ", MLP 384 (fused)"
        with contestants(FUSED) as both:
            made += compare_rollouts(both, FUSED, PLANS, REPEATS, fused)
            if is_long:
                made += [*compare_plans(both, FUSED, REPEATS, fused), *compare_frames(both, FUSED, fused)]
        if is_long:
            with contestants(WIDEST) as both:
                made += compare_rollouts(both, WIDEST, CURVE, REPEATS, ", width 512, 64 patches")
    return made


if __name__ == "__main__":
    from bench.claims import print_table

    print_table(rows())
