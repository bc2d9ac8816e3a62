"""Visible GPUs, from a folder like that of the driver, a command like nvidia-smi, and CUDA_VISIBLE_DEVICES."""

import sys

import pytest

from mstar.launch.gpus.visible import count_gpus, visible_gpus

LISTED = "GPU 0: NVIDIA H100 (UUID: GPU-a)\n  MIG 1g.10gb Device 0: (UUID: MIG-b)\nGPU 1: NVIDIA H100 (UUID: GPU-c)"


def prints(text, status=0):
    return (sys.executable, "-c", f"print({text!r}); raise SystemExit({status})")


def test_the_driver_has_a_folder_for_each_gpu(tmp_path):
    for name in ("0000:17:00.0", "0000:2a:00.0", "0000:3d:00.0"):
        (tmp_path / name).mkdir()
    assert count_gpus(tmp_path, prints(LISTED)) == 3


@pytest.mark.parametrize(
    ("command", "count"),
    [
        (prints(LISTED), 2),
        (prints("No devices were found"), 0),
        (prints("GPU 0: lost", status=9), 0),
        (("no-such-command",), 0),
    ],
)
def test_without_that_folder_a_command_lists_gpus(tmp_path, command, count):
    assert count_gpus(tmp_path / "absent", command) == count
    assert count_gpus(tmp_path, command) == count, "an empty folder"


@pytest.mark.parametrize(
    ("variable", "installed", "visible"),
    [
        (None, 2, ("0", "1")),
        (None, 0, None),
        ("3,1", 4, ("3", "1")),
        (" 1 , 0 ", 2, ("1", "0")),
        ("GPU-8a3f,MIG-17", 2, ("GPU-8a3f", "MIG-17")),
        ("1,7,0", 2, ("1",)),
        ("1,-1,0", 2, ("1",)),
        ("5", 0, ("5",)),
        ("", 2, ()),
        ("none", 2, ()),
    ],
)
def test_the_variable_lists_the_visible_gpus_up_to_the_first_invalid_one(variable, installed, visible):
    assert visible_gpus(variable, installed) == visible
