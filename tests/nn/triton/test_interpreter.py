"""Runs the tests of the interpreted kernels in a process whose triton is an interpreter on CPU tensors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent


def run_interpreted(*arguments, name="."):
    """Run the tests of a file, or all of them; return how many passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-o", "timeout=900", str(HERE / name), *arguments]
    done = subprocess.run(
        command,
        check=False,
        cwd=HERE.parents[2],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return int(re.findall(r"(\d+) passed", done.stdout)[-1])


@pytest.mark.timeout(600)
def test_kernels_and_decoders():
    assert run_interpreted() >= 15


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_more_random_batches():
    assert run_interpreted("-m", "slow", name="test_triton_attention.py") >= 5


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["test_interpreted_decoders.py", "test_token_draws.py"])
def test_all_families_and_more_draws(name):
    assert run_interpreted("-m", "slow", name=name) >= 5
