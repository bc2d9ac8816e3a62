"""Random walks give the eager answer under random schedules, placements, batches and stream bounds."""

from __future__ import annotations

import random

from programs import Generator, Program

from mstar import WalkError
from mstar.testing.parity import parity_all


def program(seed: int) -> Program | None:
    chosen = random.Random(seed)
    made = Generator(lambda n: chosen.randrange(n)).program()
    try:
        made.graphs()
    except WalkError:
        return None
    return made


def test_x() -> None:
    bad = 0
    for seed in range(300):
        p = program(seed)
        if p is None: bad += 1; continue
        parity_all(p, [1, 2], schedules=5, seed=seed)
    print("bad", bad)
