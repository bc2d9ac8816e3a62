import sys

import pytest


@pytest.fixture
def report(capfd):
    """Says something that is to be read even when the test passes: what was measured."""

    def say(text):
        with capfd.disabled():
            sys.stderr.write(f"\n{text}\n")

    return say
