"""The families of pictures, robots and worlds as claims: how many times as fast they are as their references.

Each family has a claim of its own. The headline has what a minute can hold: fewer repeats, and no curve.
"""

from __future__ import annotations

from bench.claims import Claim, print_table
from bench.multimodal import bagel, diffusion, hopper, pi05, smolvlm, vjepa2_ac
from bench.multimodal.speedup import REFERENCE
from bench.targets import Metric, TargetedMetric, claim_targets

BAGEL: dict[str, TargetedMetric] = {
    f"BAGEL, a picture drawn, times {REFERENCE}": (lambda row: row("a picture drawn, served: times faster"), 1.8),
    "BAGEL, a picture changed": (lambda row: row("a picture changed, served: times faster"), 1.7),
}
BAGEL_WIDE: dict[str, Metric] = {
    "BAGEL, a picture drawn, width 512": lambda row: row("a picture drawn, width 512, served: times faster"),
}
DIFFUSION: dict[str, TargetedMetric] = {
    "diffusion, 8 staggered requests, of a bare loop with all from the start": (
        lambda row: row("steps, served as they come: of the bare loop"),
        0.95,
    ),
    "diffusion, 8 staggered requests, of a bare loop that they join": (
        lambda row: row("steps, served as they come: of the bare loop as they come"),
        0.95,
    ),
}
PI05: dict[str, TargetedMetric] = {
    f"pi0.5, a chunk, 2 of 3 cameras and a fifth of the tokens, times {REFERENCE}": (
        lambda row: row("a chunk, 2 of 3 cameras, served: times faster"),
        1.7,
    ),
}
PI05_UNPADDED: dict[str, Metric] = {
    "pi0.5, a chunk, nothing padded": lambda row: row("a chunk, nothing padded, served: times faster"),
}
SMOLVLM: dict[str, TargetedMetric] = {
    "SmolVLM, 8 questions on a picture, times one by one": (
        lambda row: row("8 answers about a picture, served: times one by one"),
        3.0,
    ),
}
WORLD: dict[str, TargetedMetric] = {
    f"V-JEPA 2-AC, 64 rollouts of 8, times {REFERENCE}": (
        lambda row: row("64 rollouts of 8, served: times faster"),
        8.0,
    ),
    "V-JEPA 2-AC, a plan of 64 x 2 x 5": (lambda row: row("a plan, 64 x 2 x 5, served: times faster"), 3.0),
    "V-JEPA 2-AC, one of eight frames": (lambda row: row("the last of eight frames, as an op: times faster"), 3.0),
}
WORLD_FUSED: dict[str, Metric] = {
    "V-JEPA 2-AC, 64 rollouts of 8, MLP 384: fused kernels, which the published MLPs of 6144 and 4096 do not use": (
        lambda row: row("64 rollouts of 8, MLP 384 (fused), served: times faster")
    ),
}
WORLD_WIDEST: dict[str, Metric] = {
    "V-JEPA 2-AC, 8 rollouts of 8, width 512, 64 patches": (
        lambda row: row("8 rollouts of 8, width 512, 64 patches, served: times faster")
    ),
}


def image_robot_world() -> Claim:
    """All but the slowest to measure: diffusion and SmolVLM have claims of their own only."""
    rows = [*pi05.rows(), *vjepa2_ac.rows(is_long=False), *bagel.rows(repeats=2, has_wide=False)]
    text = f"Speed-up of pi0.5, V-JEPA 2-AC and BAGEL over {REFERENCE}, relative to its target"
    return claim_targets(text, rows, PI05 | WORLD | BAGEL, PI05_UNPADDED | WORLD_FUSED)


def bagel_claim() -> Claim:
    """BAGEL."""
    return claim_targets(f"Speed-up of BAGEL over {REFERENCE}, relative to its target", bagel.rows(), BAGEL, BAGEL_WIDE)


def diffusion_claim() -> Claim:
    """Diffusion."""
    text = "diffusion requests that come and go between steps take hardly more than a bare loop"
    return claim_targets(text, diffusion.rows(), DIFFUSION)


def pi05_claim() -> Claim:
    """pi0.5."""
    text = f"Speed-up of pi0.5 over {REFERENCE}, relative to its target"
    return claim_targets(text, pi05.rows(), PI05, PI05_UNPADDED)


def smolvlm_claim() -> Claim:
    """SmolVLM."""
    return claim_targets("eight questions on one picture cost a third of the reference's time", smolvlm.rows(), SMOLVLM)


def world_claim() -> Claim:
    """V-JEPA 2-AC, with the curve over horizons."""
    text = f"Speed-up of V-JEPA 2-AC over {REFERENCE}, relative to its target"
    return claim_targets(text, vjepa2_ac.rows(), WORLD, WORLD_FUSED | WORLD_WIDEST)


def hopper_claim() -> Claim:
    """The hopper, in its simulator."""
    rows = hopper.rows()
    print_table(rows)
    late = rows[1].median
    text = "of 400 replies to a robot that asks fifty times a second, at most 4 are later than 20 ms; those that were"
    return Claim(text, late, 4.0, late <= 4, {row.name: round(row.median, 2) for row in rows})
