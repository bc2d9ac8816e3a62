"""Shipped models whose answers have the same bits alone and in random crowds, without `deterministic=True`.

For the others the last bits can depend on the batch (docs/decisions/0080-deterministic-by-default.md):
`python -m bench.determinism --requests 1000` counts how many answers of each model are equal.
"""

import zlib

import pytest

from tests.models.crowds import compare
from tests.models.shipped_models import SHIPPED_MODELS
from tests.models.transcripts import one_thread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", ["pi05", "hopper", "faces"])
def test_answers_are_equal_alone_and_in_crowds(name, tmp_path):
    with one_thread():
        results = list(compare(SHIPPED_MODELS[name], tmp_path, 12, seed=zlib.crc32(name.encode())))
    assert results == [None] * 12


def test_a_difference_is_noticed(tmp_path):
    with one_thread():
        results = list(compare(SHIPPED_MODELS["qwen3-tts"], tmp_path, 12, seed=1))
    assert len(results) == 12
    assert any(results), "mend this test, and tell users: qwen3-tts does not depend on its batch any more"
