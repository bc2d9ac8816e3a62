import sys

import pytest


@pytest.fixture
def report(capfd):
    """Print a measurement, also if the test passes."""

    def write(text):
        with capfd.disabled():
            sys.stderr.write(f"\n{text}\n")

    return write
