"""Which attention backend a decoder gets, and how it is refused."""

import sys
from importlib.util import find_spec

import pytest
import torch

from mstar.errors import LoadError
from mstar.nn.kv.attention_backend import LayerNeeds
from mstar.nn.kv.backend_choice import choose_backend
from mstar.nn.kv.torch_attention import TORCH_ATTENTION
from mstar.nn.pretend_gpu import pretend_gpu
from tests.nn.kv import flashinfer_stand_in
from tests.nn.lm.concurrent_requests import make_component

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture
def with_flashinfer(monkeypatch):
    """A stand-in for FlashInfer is installed."""
    sys.modules.pop("mstar.nn.kv.flashinfer_attention", None)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_stand_in)
    yield
    sys.modules.pop("mstar.nn.kv.flashinfer_attention", None)


@pytest.fixture
def without_flashinfer(monkeypatch):
    sys.modules.pop("mstar.nn.kv.flashinfer_attention", None)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    spec = lambda name: None if name == "flashinfer" else find_spec(name)  # noqa: E731
    monkeypatch.setattr("mstar.nn.kv.backend_choice.find_spec", spec)


def test_without_a_gpu_it_is_torch(monkeypatch, with_flashinfer):
    monkeypatch.delitem(sys.modules, "mstar.nn.triton.triton_attention", raising=False)
    assert choose_backend(None, torch.float32, CPU).backend is TORCH_ATTENTION
    assert choose_backend(None, torch.bfloat16, pretend_gpu()).backend is TORCH_ATTENTION
    assert choose_backend("torch", torch.bfloat16, CUDA).backend is TORCH_ATTENTION
    assert "mstar.nn.triton.triton_attention" not in sys.modules
    assert "mstar.nn.kv.flashinfer_attention" not in sys.modules


@pytest.mark.parametrize("is_installed", [True, False])
def test_on_a_gpu_it_is_triton_if_it_is_installed(is_installed, monkeypatch, without_flashinfer):
    if is_installed:
        pytest.importorskip("triton")
    else:
        monkeypatch.setattr("mstar.nn.kv.backend_choice.find_spec", lambda _: None)
    chosen = choose_backend(None, torch.bfloat16, CUDA)
    assert chosen.backend.name == ("triton" if is_installed else "torch")
    assert not chosen.reason
    assert choose_backend(None, torch.float64, CUDA).backend is TORCH_ATTENTION


def test_on_a_gpu_it_is_flashinfer_if_that_is_installed_and_runs_the_network(with_flashinfer):
    pytest.importorskip("triton")
    chosen = choose_backend(None, torch.bfloat16, CUDA)
    assert (chosen.backend.name, chosen.reason) == ("flashinfer", "")
    assert chosen.for_layers({LayerNeeds(128, 128, has_sinks=False)}) is chosen
    for needs, problem in (
        (LayerNeeds(64, 64, has_sinks=True), "attention sinks"),
        (LayerNeeds(192, 128, has_sinks=False), "keys of size 192 with values of size 128"),
        (LayerNeeds(96, 96, has_sinks=False), "heads of size 96"),
    ):
        other = chosen.for_layers({LayerNeeds(64, 64, has_sinks=False), needs})
        assert (other.backend.name, other.reason) == ("triton", f"flashinfer does not support {problem}")
        with pytest.raises(
            LoadError, match=rf"flashinfer does not support {problem}\n  fix: set attention_backend='tr"
        ):
            choose_backend("flashinfer", torch.bfloat16, CUDA).for_layers({needs})
    other = choose_backend(None, torch.float32, CUDA)
    assert (other.backend.name, other.reason) == ("triton", "flashinfer does not support torch.float32")


def test_a_flashinfer_that_cannot_be_imported_is_not_used(monkeypatch, with_flashinfer):
    pytest.importorskip("triton")
    monkeypatch.setattr("mstar.nn.kv.backend_choice.find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    chosen = choose_backend(None, torch.bfloat16, CUDA)
    assert chosen.backend.name == "triton"
    assert chosen.reason.startswith("flashinfer needs flashinfer: import of flashinfer halted")


def test_a_backend_that_cannot_run_is_refused(monkeypatch, without_flashinfer):
    with pytest.raises(
        LoadError, match=r"unknown attention backend 'flash'\n  fix: use one of torch, triton, flashinfer"
    ):
        choose_backend("flash", torch.float32, CPU)
    with pytest.raises(LoadError, match=r"needs flashinfer: [\s\S]*fix: pip install 'mstar-serve\[flashinfer\]'"):
        choose_backend("flashinfer", torch.bfloat16, CUDA)
    if "triton" in sys.modules or pytest.importorskip("triton"):
        with pytest.raises(LoadError, match=r"does not run on cpu\n  fix: set attention_backend='torch'"):
            choose_backend("triton", torch.float32, CPU)
        with pytest.raises(LoadError, match=r"does not support torch.float64\n  fix: load the network in"):
            choose_backend("triton", torch.float64, CUDA)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(LoadError, match=r"needs triton: [\s\S]*fix: pip install 'mstar-serve\[triton\]'"):
        choose_backend("triton", torch.float32, CPU)


def test_fp8_needs_a_gpu_that_has_it(monkeypatch, without_flashinfer):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert choose_backend(None, torch.bfloat16, CUDA, torch.float8_e4m3fn).backend.name == "triton"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(LoadError, match=r"does not support fp8 on cuda:0, whose compute capability is below 8.9"):
        choose_backend(None, torch.bfloat16, CUDA, torch.float8_e4m3fn)


def test_a_component_names_its_backend():
    with pytest.raises(LoadError, match="unknown attention backend 'flash'"):
        make_component("llama", attention_backend="flash").prepare()


def test_a_placement_names_the_backend_of_a_component():
    lm = make_component("llama", attention_backend="torch")
    lm.operator_settings = {"attention_backend": "flash"}
    with pytest.raises(LoadError, match="unknown attention backend 'flash'"):
        lm.prepare()
