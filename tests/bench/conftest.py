import pytest

from tests.bench.toy_history import Checkout


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)
