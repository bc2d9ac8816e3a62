import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def frozen_again():
    """The simulator ends with `gc.unfreeze`, which also undoes what tests/conftest.py froze."""
    yield
    gc.freeze()
