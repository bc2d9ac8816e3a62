"""ONNX Runtime: telemetry is off, a missing package is reported with its fix, and a device selects the provider."""

import logging
import sys
from pathlib import Path

import hibari
import numpy as np
import onnxruntime
import pytest
import torch

from mstar.errors import LoadError
from mstar.nn.onnx import import_onnxruntime, open_session

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def test_telemetry_events_are_disabled_at_the_import(monkeypatch):
    calls = []
    monkeypatch.setattr(onnxruntime, "disable_telemetry_events", lambda: calls.append(1))
    assert import_onnxruntime("a model") is onnxruntime
    assert calls == [1]


def test_a_missing_package_is_reported_with_its_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(LoadError, match=r"a model needs a library[\s\S]*fix: pip install 'mstar-serve\[onnx\]'"):
        import_onnxruntime("a model")


class Session:
    """A session that has the libraries of all its providers."""

    def __init__(self, path, options, providers):
        assert (path, options.intra_op_num_threads) == ("network.onnx", 1)
        self.providers = providers

    def get_providers(self):
        return [provider if isinstance(provider, str) else provider[0] for provider in self.providers]


@pytest.mark.parametrize(
    ("device", "available", "providers", "logged"),
    [
        (None, [CUDA, CPU], [CPU], ""),
        ("cuda:1", [CUDA, CPU], [(CUDA, {"device_id": 1}), CPU], "a model runs on cuda:1"),
        ("cuda", [CUDA, CPU], [(CUDA, {"device_id": 0}), CPU], "a model runs on cuda"),
        ("cuda:1", [CPU], [CPU], "a model runs on the CPU, because ONNX Runtime has no provider for cuda:1"),
        ("xpu", [CUDA, CPU], [CPU], "a model runs on the CPU, because ONNX Runtime has no provider for xpu"),
    ],
)
def test_a_device_selects_the_provider(device, available, providers, logged, monkeypatch, caplog):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    with caplog.at_level(logging.INFO, "mstar.nn"):
        session = open_session("a model", Path("network.onnx"), device and torch.device(device))
    assert session.providers == providers
    assert [record.getMessage() for record in caplog.records] == [logged] * bool(logged)


def test_a_value_inside_a_network_becomes_its_last_output():
    path = Path(hibari.__file__).parent / "assets" / "oov.onnx"
    sessions = open_session("a model", path), open_session("a model", path, also="/Reshape_16_output_0")
    (tokens,), (same_tokens, scores) = (one.run(None, {"chars": np.array([[3, 4, 5]])}) for one in sessions)
    assert np.array_equal(tokens, same_tokens)
    assert np.array_equal(scores.argmax(-1), tokens)
