"""Copies between host and device."""

import torch

from mstar.nn.staging import new_export, to_host, use_shared_exports
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


def test_large_exports_are_in_memory_that_other_processes_can_map():
    made = []
    use_shared_exports(lambda size: made.append(bytearray(size)) or made[-1])
    try:
        assert len(new_export(100, min_shared=1000)) == 100
        assert not made
        export = new_export(2000, min_shared=1000)
        export.fill_(7)
        assert made == [bytearray([7] * 2000)]
    finally:
        use_shared_exports(None)
    assert len(new_export(2000, min_shared=1000)) == 2000
    assert len(made) == 1
