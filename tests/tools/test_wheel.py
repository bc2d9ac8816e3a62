"""The wheel installs into an empty environment and checks a model there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment():
    done = subprocess.run(
        ["scripts/build-wheel"],
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the wheel installs and checks a model in an empty environment" in done.stdout
