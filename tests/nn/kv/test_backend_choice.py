"""Which attention backend a decoder gets, and how it is refused."""

import sys

import pytest
import torch

from mstar.errors import LoadError
from mstar.nn.kv.backend_choice import choose_backend
from mstar.nn.kv.torch_attention import TORCH_ATTENTION
from mstar.nn.pretend_gpu import pretend_gpu
from tests.nn.lm.concurrent_requests import make_component

CPU = torch.device("cpu")


def test_without_a_gpu_it_is_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "mstar.nn.triton.triton_attention", raising=False)
    assert choose_backend(None, torch.float32, CPU) is TORCH_ATTENTION
    assert choose_backend(None, torch.bfloat16, pretend_gpu()) is TORCH_ATTENTION
    assert choose_backend("torch", torch.bfloat16, torch.device("cuda:0")) is TORCH_ATTENTION
    assert "mstar.nn.triton.triton_attention" not in sys.modules


@pytest.mark.parametrize("is_installed", [True, False])
def test_on_a_gpu_it_is_triton_if_it_is_installed(is_installed, monkeypatch):
    if is_installed:
        pytest.importorskip("triton")
    monkeypatch.setattr("mstar.nn.kv.backend_choice.find_spec", lambda _: object() if is_installed else None)
    chosen = choose_backend(None, torch.bfloat16, torch.device("cuda:0"))
    assert type(chosen).__name__ == ("TritonAttention" if is_installed else "TorchAttention")
    assert choose_backend(None, torch.float64, torch.device("cuda:0")) is TORCH_ATTENTION


def test_a_backend_that_cannot_run_is_refused(monkeypatch):
    with pytest.raises(LoadError, match=r"unknown attention backend 'flash'\n  fix: use one of torch, triton"):
        choose_backend("flash", torch.float32, CPU)
    if "triton" in sys.modules or pytest.importorskip("triton"):
        with pytest.raises(LoadError, match=r"does not run on cpu\n  fix: set attention_backend='torch'"):
            choose_backend("triton", torch.float32, CPU)
        with pytest.raises(LoadError, match=r"does not support torch.float64\n  fix: load the network in"):
            choose_backend("triton", torch.float64, torch.device("cuda:0"))
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(LoadError, match=r"needs triton: [\s\S]*fix: pip install 'mstar-serve\[triton\]'"):
        choose_backend("triton", torch.float32, CPU)


def test_a_component_names_its_backend():
    with pytest.raises(LoadError, match="unknown attention backend 'flash'"):
        make_component("llama", attention_backend="flash").prepare()


def test_a_placement_names_the_backend_of_a_component():
    lm = make_component("llama", attention_backend="torch")
    lm.operator_settings = {"attention_backend": "flash"}
    with pytest.raises(LoadError, match="unknown attention backend 'flash'"):
        lm.prepare()
