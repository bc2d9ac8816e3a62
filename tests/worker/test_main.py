"""Start of a worker: which device it opens, and how it calls it."""

import pytest

from mstar.errors import LoadError
from mstar.nn import devices
from mstar.worker.main import _open_device


@pytest.fixture
def opened(monkeypatch):
    """Names of devices that were opened."""
    names = []
    monkeypatch.setattr(devices, "open_device", names.append)
    return names


def test_a_device_has_the_name_of_the_placement(opened):
    assert _open_device("w0", {"xpu:1"}, "")[0] == "xpu:1"
    assert opened == ["xpu:1"]


def test_the_only_visible_gpu_is_the_first_one_inside_and_keeps_its_name_for_operators(opened):
    assert _open_device("w0", {"cuda:1"}, "cuda:1")[0] == "cuda:1"
    assert _open_device("w0", {"cuda"}, "cuda:3")[0] == "cuda:3"
    assert opened == ["cuda:0", "cuda:0"]


def test_a_gpu_that_cannot_be_used_is_named_as_in_the_placement(monkeypatch):
    def refuse(name):
        raise LoadError(f"torch cannot use the device {name!r}\n  fix: install another build")

    monkeypatch.setattr(devices, "open_device", refuse)
    with pytest.raises(LoadError, match="worker w0 sees cuda:1 only, as its cuda:0: torch cannot use the device"):
        _open_device("w0", {"cuda:1"}, "cuda:1")


def test_two_devices_of_one_worker_are_refused(opened):
    with pytest.raises(LoadError, match="`cuda:0`, `cuda:1`"):
        _open_device("w0", {"cuda:1", "cuda:0"}, "cuda:1")
    assert opened == []
