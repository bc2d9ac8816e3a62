"""Which GPU a worker gets, and which GPUs no worker uses."""

import tomllib

import pytest

from mstar.errors import PlacementError
from mstar.launch.gpus.assignment import assign_gpus, unused_gpus, worker_devices
from mstar.plan.placement import parse_placement


def test_the_devices_of_workers_are_in_the_order_of_the_workers():
    text = '[place]\na = ["w0", "w1"]\nb = "w2"\n[workers.w2]\ndevice = "cuda"\n[workers.w0]\ndevice = "pretend"\n'
    placement = parse_placement(tomllib.loads(text + "[workers.w1]\ncpus = 2"))
    assert [*worker_devices([placement]).items()] == [("w0", "pretend"), ("w2", "cuda")]


@pytest.mark.parametrize(
    ("devices", "visible", "assigned"),
    [
        ({"a": "cuda:1"}, ["0", "1"], {"a": (("cuda:1",), "1")}),
        ({"a": "cuda:1"}, ["3", "GPU-8a"], {"a": (("cuda:1",), "GPU-8a")}),
        ({"a": "cuda:1"}, None, {"a": (("cuda:1",), "1")}),
        ({"a": "cuda"}, None, {}),
        ({"a": "cuda", "b": "cuda"}, ["4", "5"], {"a": (("cuda:0",), "4"), "b": (("cuda:1",), "5")}),
        ({"a": "cuda", "b": "cuda:0"}, ["4", "5"], {"a": (("cuda:1",), "5"), "b": (("cuda:0",), "4")}),
        ({"a": "cuda", "b": "cuda"}, ["4"], {"a": (("cuda:0",), "4"), "b": (("cuda:0",), "4")}),
        ({"a": "cuda", "b": "cuda:0"}, ["4"], {"a": (("cuda:0",), "4"), "b": (("cuda:0",), "4")}),
        ({"a": "pretend", "b": "cpu", "c": "xpu:1"}, ["0"], {}),
    ],
)
def test_a_worker_gets_its_gpu_among_the_visible_ones(devices, visible, assigned):
    assert assign_gpus(devices, visible) == assigned


@pytest.mark.parametrize(
    ("devices", "assigned"),
    [
        ({"a": "cuda:1", "b": "cuda"}, {"a": (("cuda:1", "cuda:2"), "5,6"), "b": (("cuda:0",), "4")}),
        ({"b": "cuda", "a": "cuda"}, {"b": (("cuda:0",), "4"), "a": (("cuda:1", "cuda:2"), "5,6")}),
        ({"b": "cuda:0", "c": "cuda:1", "a": "cuda"}, {"a": (("cuda:0", "cuda:1"), "4,5")}),
    ],
)
def test_each_rank_gets_a_gpu(devices, assigned):
    every = assign_gpus(devices, ["4", "5", "6"], {"a": 2})
    assert {worker: every[worker] for worker in assigned} == assigned
    assert unused_gpus({"a": "cuda"}, ["4", "5"], {"a": 2}) is None


def test_ranks_without_enough_gpus_are_refused():
    with pytest.raises(PlacementError, match="the GPU cuda:3 is not visible; visible: `cuda:0`, `cuda:1`, `cuda:2`"):
        assign_gpus({"a": "cuda:2"}, ["0", "1", "2"], {"a": 2})
    with pytest.raises(PlacementError, match="the GPU cuda:1 is not visible"):
        assign_gpus({"a": "cuda"}, ["0"], {"a": 2})


@pytest.mark.parametrize(
    ("device", "visible", "message"),
    [
        ("cuda:2", ["0", "1"], "the GPU cuda:2 is not visible; visible: `cuda:0`, `cuda:1`"),
        ("cuda", [], "the GPU cuda:0 is not visible; visible: none"),
    ],
)
def test_a_gpu_that_is_not_visible_is_refused_before_a_process_starts(device, visible, message):
    with pytest.raises(PlacementError, match=message) as error:
        assign_gpus({"a": device}, visible)
    assert "CUDA_VISIBLE_DEVICES" in str(error.value)


@pytest.mark.parametrize(
    ("devices", "count", "message"),
    [
        ({}, 1, "1 GPU is visible and no worker of the placement uses one"),
        ({"a": "pretend"}, 2, "2 GPUs are visible and no worker of the placement uses one"),
        ({"a": "cuda:1"}, 3, "no worker uses 2 of 3 visible GPUs: `cuda:0`, `cuda:2`"),
    ],
)
def test_gpus_that_no_worker_uses(devices, count, message):
    what, fix = unused_gpus(devices, [*map(str, range(count))])
    assert what == message
    assert '[workers.NAME] device = "cuda:0"' in fix


def test_gpus_that_are_all_used():
    assert unused_gpus({"a": "cuda", "b": "cuda:0"}, ["0", "1"]) is None
    assert unused_gpus({}, []) is None
