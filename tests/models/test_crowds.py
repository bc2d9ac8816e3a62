"""The comparison of `python -m bench.determinism` notices results that depend on the batch, and no others.

Which shipped models have none depends on the CPU and its libraries, so no test expects it of one of them.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from mstar import Component, Int64, Model, Tensor, Text, loop, op, stacked, walk
from tests.models.crowds import compare
from tests.models.shipped_models import ShippedModel


class Counter(Component):
    """Adds the size of its batch if it depends on it."""

    def __init__(self, *, depends_on_batch):
        self._depends_on_batch = depends_on_batch

    @op(batch=stacked)
    def step(self, x: Int64[Tensor, "1"]) -> Int64[Tensor, "1"]:
        return np.asarray(x) + 1 + self._depends_on_batch * len(x)


class Counting(Model):
    def __init__(self, *, depends_on_batch):
        self.counter = Counter(depends_on_batch=depends_on_batch)

    @walk
    def count(self, first: Int64[Tensor, "1"]) -> Iterator[Text]:
        s = loop(steps=6, token=first)
        for _ in s:
            s.token = self.counter.step(s.token)
            yield Text(s.token)

    async def route(self, request: int) -> None:
        await self.count(np.array([request], np.int64))


@pytest.mark.parametrize("depends_on_batch", [False, True])
def test_results_that_depend_on_the_batch_are_noticed(depends_on_batch, tmp_path):
    shipped = ShippedModel(lambda _: Counting(depends_on_batch=depends_on_batch), lambda rng: rng.randrange(100))
    results = list(compare(shipped, tmp_path, 30, seed=1))
    assert len(results) >= 30
    assert any(results) == depends_on_batch
