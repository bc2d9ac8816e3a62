"""Copies between host and device."""

import torch

from mstar.nn.staging import to_host
from tests.nn.fake_cuda import fake_cuda


def test_what_is_on_the_host_is_not_copied():
    tensor = torch.arange(4)
    assert to_host(tensor).data_ptr() == tensor.data_ptr()


def test_from_a_cuda_device_to_pinned_memory(monkeypatch):
    pinned, new = [], torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: pinned.append(kwargs) or new(*args, **kwargs))
    with fake_cuda():
        copied = to_host(torch.empty(4, device="cuda"))
    assert copied.device.type == "cpu"
    assert pinned == [{"device": "cpu", "pin_memory": True}]
