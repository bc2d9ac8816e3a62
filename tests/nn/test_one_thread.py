"""Execution on one CPU thread."""

import pytest
import torch

from mstar.nn.one_thread import one_thread


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_number_of_threads_is_restored_after_an_error(two_threads):
    counts = []

    @one_thread()
    def fail():
        counts.append(torch.get_num_threads())
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [*counts, torch.get_num_threads()] == [1, 2]
