"""The warning of `mstar serve` about GPUs that no worker uses."""

import pytest

from mstar.cli.serving.gpus import warn_unused_gpus
from mstar.plan.planned_model import PlannedModel
from tests.worker.worker_harness import PLANS, Lm, Walks

USE = 'fix: write in the placement: [workers.NAME] device = "cuda:0"; or hide them with CUDA_VISIBLE_DEVICES'


@pytest.fixture
def warnings(caplog, monkeypatch):
    """What is logged for a model with these devices, on a host with this number of GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(Lm, "runs_on_device", True)

    def warn(devices, installed, **more):
        caplog.clear()
        warn_unused_gpus({"m": PlannedModel(Walks(), PLANS["m"], devices)}, installed=installed, **more)
        return caplog.messages

    return warn


def test_gpus_that_no_worker_uses_are_a_warning(warnings):
    assert warnings({}, 2) == [f"2 GPUs are visible and no worker of the placement uses one; {USE}"]
    assert warnings({"w1": "cuda:1"}, 2) == [f"no worker uses 1 of 2 visible GPUs: `cuda:0`; {USE}"]


def test_gpus_that_are_used_or_hidden_are_none(warnings, monkeypatch):
    assert warnings({}, 0) == []
    assert warnings({"w1": "cuda", "w0": "cuda"}, 2) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert warnings({}, 2) == []


def test_components_that_cannot_use_a_gpu_need_no_fix(warnings, monkeypatch):
    monkeypatch.setattr(Lm, "runs_on_device", False)
    (message,) = warnings({}, 1)
    assert message.endswith("fix: none: the components of these models run on the CPU only (docs/gpu.md)")


def test_one_process_uses_no_gpu(warnings):
    (message,) = warnings({"w0": "cuda"}, 1, is_in_process=True)
    assert "fix: serve without --in-process" in message
