"""Seeded requests alone and in random crowds, compared bit for bit."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path

from mstar.nn.lm.decoder import SlowPath
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import first_difference, random_placement
from tests.models.shipped_models import ShippedModel

CROWDS = (2, 3, 5, 9, 17, 24)
"""Numbers of requests that are served together."""
BATCH_SIZES = (2, 4, 8, 32)
BATCHED_TOKENS = (None, 7, 50)
"""Limits of the positions of a batch: prompts are read in chunks of other sizes."""


def compare(shipped: ShippedModel, folder: Path, count: int, seed: int) -> Iterator[str | None]:
    """The first difference of each request, or None if its answer in a crowd equals the one alone.

    Two instances of the model serve them, so that the crowd finds nothing in a cache that was computed alone.
    """
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPath)  # networks that run in the code of their library are compared too
        (folder / "alone").mkdir()
        (folder / "crowd").mkdir()
        alone, crowd = shipped.make(folder / "alone"), shipped.make(folder / "crowd")
        single = LocalRuntime(alone, max_batch_size=1)
        left = count
        while left:
            requests = [shipped.draw(rng) for _ in range(min(left, rng.choice(CROWDS)))]
            left -= len(requests)
            expected = [single.run(request) for request in requests]
            placement = None if rng.random() < 0.5 else random_placement(crowd.graphs(), rng)
            runtime = LocalRuntime(
                crowd,
                placement,
                seed=rng.randrange(1 << 30),
                max_batch_size=rng.choice(BATCH_SIZES),
                max_batched_tokens=rng.choice(BATCHED_TOKENS),
            )
            for one, other in zip(expected, runtime.run_all(requests), strict=True):
                yield first_difference(one, other)
