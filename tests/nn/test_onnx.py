"""ONNX Runtime: imported with telemetry off, and a missing package is reported with its fix."""

import sys

import onnxruntime
import pytest

from mstar.errors import LoadError
from mstar.nn.onnx import import_onnxruntime


def test_telemetry_events_are_disabled_at_the_import(monkeypatch):
    calls = []
    monkeypatch.setattr(onnxruntime, "disable_telemetry_events", lambda: calls.append(1))
    assert import_onnxruntime("a model") is onnxruntime
    assert calls == [1]


def test_a_missing_package_is_reported_with_its_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(LoadError, match=r"a model needs a library[\s\S]*fix: pip install 'mstar-serve\[onnx\]'"):
        import_onnxruntime("a model")
