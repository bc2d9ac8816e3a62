"""Ranks that split the positions of a diffusion transformer: each computes its part, and the result is the same."""

import json
import subprocess
import sys

import pytest
import torch

from mstar.errors import LoadError
from mstar.nn.diffusion.sequence_parallel import split_sequence
from mstar.nn.ranks import Rank
from tests.nn.diffusion.sequence_parallel_rank import sd3

POSITIONS = {"sd3": 15, "wan": 45, "wan, a time per position": 45, "wan, equal lengths": 6}
POSITIONS |= {"ltx": 45, "ltx, a time per position": 45}


@pytest.mark.timeout(120)
def test_two_ranks_compute_half_of_the_positions_each(tmp_path):
    command = [sys.executable, "-m", "tests.nn.diffusion.sequence_parallel_rank", f"file://{tmp_path}/meet"]
    ranks = [subprocess.Popen([*command, str(rank), "2"], stdout=subprocess.PIPE) for rank in range(2)]
    try:
        seen = [json.loads(rank.communicate(timeout=100)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for name, total in POSITIONS.items():
        layers = len(seen[0][name]["lengths"])
        assert layers >= 2
        assert seen[0][name]["lengths"] == [total // 2] * layers, name
        assert seen[1][name]["lengths"] == [total - total // 2] * layers, name
        assert max(one[name]["difference"] for one in seen) < 1e-5, name


def test_heads_that_ranks_cannot_share_are_refused():
    with pytest.raises(LoadError, match="SD3Transformer2DModel has 4 heads, not divisible by 3 ranks\n  fix: "):
        split_sequence(sd3(), Rank(0, 3))


def test_a_network_without_a_sequence_is_refused():
    with pytest.raises(LoadError, match="Linear has no sequence that ranks can split\n  fix: remove `ranks`"):
        split_sequence(torch.nn.Linear(2, 2), Rank(0, 2))
