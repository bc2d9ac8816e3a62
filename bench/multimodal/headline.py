"""The families of pictures, robots and worlds as claims: how many times as fast they are as their references.

Each family has a claim of its own. The headline has what a minute can hold: fewer repeats, and no curve.
"""

from __future__ import annotations

from bench.claims import Claim, print_table
from bench.multimodal import bagel, diffusion, hopper, pi05, smolvlm, vjepa2_ac
from bench.targets import TargetedMetric, claim_targets

BAGEL: dict[str, TargetedMetric] = {
    "BAGEL, a picture drawn, times the published code": (lambda row: row("a picture drawn, served: times faster"), 1.8),
    "BAGEL, a picture changed": (lambda row: row("a picture changed, served: times faster"), 1.7),
}
DIFFUSION: dict[str, TargetedMetric] = {
    "diffusion, 8 staggered requests, of the bare loop": (
        lambda row: row("steps, served as they come: of the bare loop"),
        0.95,
    ),
}
PI05: dict[str, TargetedMetric] = {
    "pi0.5, a chunk, times the published code": (
        lambda row: row("a chunk, as published") / row("a chunk, served"),
        1.7,
    ),
}
SMOLVLM: dict[str, TargetedMetric] = {
    "SmolVLM, 8 questions on a picture, times one by one": (
        lambda row: row("8 answers about a picture, served: times one by one"),
        3.0,
    ),
}
WORLD: dict[str, TargetedMetric] = {
    "V-JEPA 2-AC, 64 rollouts of 8, times the published code": (
        lambda row: row("64 rollouts of 8, served: times faster"),
        8.0,
    ),
    "V-JEPA 2-AC, a plan of 64 x 2 x 5": (lambda row: row("a plan, 64 x 2 x 5, served: times faster"), 3.0),
    "V-JEPA 2-AC, one of eight frames": (lambda row: row("the last of eight frames, as an op: times faster"), 3.0),
}


def image_robot_world() -> Claim:
    """All but the slowest to measure: diffusion and SmolVLM have claims of their own only."""
    rows = [*pi05.rows(), *vjepa2_ac.rows(has_curve=False), *bagel.rows(repeats=2)]
    text = "Speed-up of pi0.5, V-JEPA 2-AC and BAGEL over the published code, relative to its target"
    return claim_targets(text, rows, PI05 | WORLD | BAGEL)


def bagel_claim() -> Claim:
    """BAGEL."""
    return claim_targets("Speed-up of BAGEL over the published code, relative to its target", bagel.rows(), BAGEL)


def diffusion_claim() -> Claim:
    """Diffusion."""
    text = "diffusion requests that come and go between steps take hardly more than one batch of all"
    return claim_targets(text, diffusion.rows(), DIFFUSION)


def pi05_claim() -> Claim:
    """pi0.5."""
    return claim_targets("Speed-up of pi0.5 over the published code, relative to its target", pi05.rows(), PI05)


def smolvlm_claim() -> Claim:
    """SmolVLM."""
    return claim_targets("eight questions on one picture cost a third of the reference's time", smolvlm.rows(), SMOLVLM)


def world_claim() -> Claim:
    """V-JEPA 2-AC, with the curve over horizons."""
    text = "Speed-up of V-JEPA 2-AC over the published code, relative to its target"
    return claim_targets(text, vjepa2_ac.rows(), WORLD)


def hopper_claim() -> Claim:
    """The hopper, in its simulator."""
    rows = hopper.rows()
    print_table(rows)
    late = rows[1].median
    text = "of 400 replies to a robot that asks fifty times a second, at most 4 are later than 20 ms; those that were"
    return Claim(text, late, 4.0, late <= 4, {row.name: round(row.median, 2) for row in rows})
