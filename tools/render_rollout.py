"""Renders docs/pictures/rollout.png: the rounds of V-JEPA 2-AC's planning by the cross-entropy method.

`python -m tools.render_rollout` runs the components of the walk `plan` eagerly, with the tiny random weights of the
tests. The goal is the predicted state after two actions that the search does not know. Not a test.
"""

import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from mstar.models.vjepa2.cem import MAX_TRANSLATION_M, CemParams
from mstar.models.vjepa2.vjepa2_ac import VJepa2AC
from mstar.models.vjepa2.world import World
from tests.models.vjepa2 import vjepa2_tiny as tiny

FILE = Path(__file__).parents[1] / "docs" / "pictures" / "rollout.png"
SEARCH = CemParams(horizon=2, candidates=128, rounds=8, elites=12, seed=3)
SECRET = torch.tensor([[0.045, -0.03, 0.02, 0, 0, 0, 0.6], [0.04, -0.045, -0.01, 0, 0, 0, 0.5]])
SCALE, SIZE, EDGE = 3, 420, 46
INK, SOFT, GOAL = (31, 35, 40), (140, 149, 159), (207, 90, 28)


def run_search(model: VJepa2AC) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """Costs and final poses [plans, 7] of every round, and the final pose of the goal."""
    here, secret = World(), World()
    start = model.encoder.encode_frame(torch.from_numpy(tiny.picture(1)))
    for world in (here, secret):
        model.predictor.observe(start, torch.zeros(7), SEARCH.horizon, world)
    for action in SECRET:
        model.predictor.advance(action[None], secret)
    goal, there = model.predictor.read_world(secret)
    (mean, spread), costs, poses = model.cem.begin(SEARCH), [], []
    for step in range(SEARCH.rounds):
        plans, world = model.cem.sample(mean, spread, step, SEARCH), here.fork()
        for actions in plans:
            model.predictor.advance(actions, world)
        costs.append(model.predictor.distance(goal[0], world))
        poses.append(model.predictor.read_world(world)[1])
        mean, spread = model.cem.refit(plans, costs[-1], mean, spread, SEARCH)
    return costs, poses, there[0]


def shade(step: int) -> tuple[int, int, int]:
    """Color of a round; later rounds are darker."""
    part = step / (SEARCH.rounds - 1)
    return tuple(round(a + (b - a) * part) for a, b in zip((198, 224, 229), (20, 90, 105), strict=True))  # pyright: ignore[reportReturnType]


class Panel:
    """A plot on a canvas, with a fixed value range."""

    def __init__(self, left: int, title: str, low: tuple[float, float], high: tuple[float, float]) -> None:
        self.left, self.low, self.high = left, low, high
        self.canvas = Image.new("RGB", (SIZE * SCALE, SIZE * SCALE), "white")
        self.draw = ImageDraw.Draw(self.canvas)
        self.font = ImageFont.load_default(13 * SCALE)
        edges = (EDGE * SCALE, EDGE * SCALE, (SIZE - 20) * SCALE, (SIZE - EDGE) * SCALE)
        self.draw.rectangle(edges, outline=SOFT, width=SCALE)
        self.draw.text((EDGE * SCALE, 18 * SCALE), title, INK, self.font)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across, up = ((v - low) / (high - low) for v, low, high in zip((x, y), self.low, self.high, strict=True))
        return (EDGE + across * (SIZE - EDGE - 20)) * SCALE, (SIZE - EDGE - up * (SIZE - 2 * EDGE)) * SCALE

    def dot(self, x: float, y: float, color: tuple[int, int, int], size: float = 2.5) -> None:
        (x, y), size = self.at(x, y), size * SCALE
        self.draw.ellipse((x - size, y - size, x + size, y + size), color)

    def cross(self, x: float, y: float) -> None:
        x, y = self.at(x, y)
        for sign in (-1, 1):
            ends = (x - 9 * SCALE, y - 9 * sign * SCALE, x + 9 * SCALE, y + 9 * sign * SCALE)
            self.draw.line(ends, GOAL, 3 * SCALE)

    def label(self, x: float, y: float, text: str) -> None:
        self.draw.text(self.at(x, y), text, SOFT, self.font, anchor="mm")


def draw_panels(costs: list[torch.Tensor], poses: list[torch.Tensor], goal: torch.Tensor) -> Image.Image:
    most, far = float(costs[0].max()) * 1.05, 2.4 * MAX_TRANSLATION_M
    left = Panel(0, "distance to the goal by round", (-0.6, 0), (SEARCH.rounds - 0.4, most))
    right = Panel(SIZE, "predicted final position of the hand (x, y in m)", (-far, -far), (far, far))
    for step, (cost, pose) in enumerate(zip(costs, poses, strict=True)):
        for number, one in enumerate(cost.tolist()):
            left.dot(step + (number / SEARCH.candidates - 0.5) * 0.5, one, shade(step), 1.8)
        left.label(step, -0.045 * most, str(step + 1))
        for x, y, *_ in pose.tolist():
            right.dot(x, y, shade(step))
    means = [(step, float(cost.mean())) for step, cost in enumerate(costs)]
    left.draw.line([left.at(*one) for one in means], INK, 2 * SCALE)
    right.cross(*goal[:2].tolist())
    for tick in (-0.1, 0.0, 0.1):
        right.label(tick, -far * 1.09, f"{tick:g}")
        right.label(-far * 1.12, tick, f"{tick:g}")
    whole = Image.new("RGB", (2 * SIZE * SCALE, SIZE * SCALE), "white")
    for panel in (left, right):
        whole.paste(panel.canvas, (panel.left * SCALE, 0))
    return whole.resize((2 * SIZE, SIZE), Image.Resampling.LANCZOS)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        costs, poses, goal = run_search(VJepa2AC(tiny.save_ac(Path(folder))))
    draw_panels(costs, poses, goal).quantize(64).save(FILE, optimize=True)
    first, last = float(costs[0].mean()), float(costs[-1].mean())
    off = float((poses[-1].mean(0) - goal)[:3].norm())
    summary = f"distance {first:.3f} to {last:.3f}, the hand {off * 100:.1f} cm off"
    print(f"{FILE.name}: {summary}, {FILE.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
