"""What all tests of networks share."""

import functools

import pytest
import torch

from mstar.nn.compile import graph_capture


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two threads on tiny tensors wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_flattened = functools.cache(graph_capture.flatten)


@pytest.fixture(autouse=True)
def flatten_once(monkeypatch):
    """Recording a network takes a second or two: once for each network is enough for all tests."""
    monkeypatch.setattr(graph_capture, "flatten", _flattened)
