"""`mstar doctor`: each line says what is, and what to do where it is not as it should be."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys

import pytest

from mstar.cli import doctor, main


@pytest.fixture
def run_doctor(capsys, monkeypatch):
    """What it finds, by what it looked at; the last of a kind counts. Weights are hashed in one test only."""
    monkeypatch.setattr(doctor, "CHECKS", tuple(check for check in doctor.CHECKS if check is not doctor._weights))

    def looked(*arguments, status=0):
        assert main(["doctor", "--json", *arguments]) == status
        return {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}

    return looked


def test_everything_is_looked_at(run_doctor):
    names = {*run_doctor()}
    assert names >= {"python", "torch", "mstar", "[serve]", "[media]", "codecs", "cores", "processor"}
    assert names >= {"memory", "memfd", "open files", "compiler", "run folder", "port", "clock"}


def test_what_is_not_well_says_what_to_do(run_doctor):
    assert all(finding["fix"] for finding in run_doctor().values() if finding["state"] != "ok")


def test_a_line_for_each(capsys):
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    models = {line.split()[2] for line in lines if " weights " in line}
    assert models >= {"assistant:", "hibari:", "smollm2:", "whisper:"}
    assert all(line.startswith(("ok    ", "warn  ", "fail  ", " " * 22)) for line in lines)


def test_it_imports_nothing_heavy():
    """In a process of its own: this one has imported everything."""
    text = "import sys; from mstar.cli import main; main(['doctor']); print({'torch', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_port_in_use(run_doctor, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(doctor, "DEFAULT_PORT", taken.getsockname()[1])
        port = run_doctor()["port"]
    assert port["state"] == "warn"
    assert "--port" in port["fix"]
    assert run_doctor()["port"]["state"] == "ok"


def test_no_compiler(run_doctor, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert run_doctor()["compiler"] == {
        "check": "compiler",
        "state": "warn",
        "message": "no g++: fused kernels are off, and steps are slower",
        "fix": "install g++",
    }


@pytest.mark.parametrize(
    ("limit", "state", "fix"), [(256, "warn", "ulimit -n 4096"), (4095, "warn", "ulimit -n 4096"), (4096, "ok", "")]
)
def test_few_files(run_doctor, limit, state, fix):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        files = run_doctor()["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (files["state"], files["fix"]) == (state, fix)


def test_no_shared_memory_is_a_failure_and_its_status(run_doctor, monkeypatch):
    def refused(name):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert run_doctor(status=1)["memfd"]["state"] == "fail"


def test_a_run_folder_that_cannot_be_used(run_doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    assert run_doctor(status=1)["run folder"]["state"] == "fail"
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert "too long" in run_doctor(status=1)["run folder"]["message"]


def test_little_memory_and_a_share_of_the_cores(run_doctor, monkeypatch):
    payload = {
        "/proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 8000000 kB",
        "/sys/fs/cgroup/memory.max": str(1 << 30),
        "/sys/fs/cgroup/memory.current": str(1 << 29),
        "/sys/fs/cgroup/cpu.max": "50000 100000",
    }
    monkeypatch.setattr(doctor, "_read", lambda path: payload.get(path, ""))
    looked = run_doctor()
    assert (looked["memory"]["state"], looked["memory"]["message"]) == ("warn", "0.5 of 1.0 GiB free")
    assert "--threads 1" in looked["cores"]["fix"]
    assert looked["processor"]["state"] == "warn"


@pytest.mark.parametrize(
    ("version", "spec", "fits"),
    [("1.2.3", ">=1.2,<2", True), ("2.0", "<2,>=1.2", False), ("0.9", ">=0.10", False), ("2.13.0+cpu", ">=2.13", True)],
)
def test_versions_are_compared_as_numbers(version, spec, fits):
    assert doctor._satisfies(version, spec) is fits


def test_a_missing_package_names_its_extra(run_doctor, monkeypatch):
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "starlette" else known(name))
    serve = run_doctor()["[serve]"]
    assert serve["state"] == "warn"
    assert "starlette missing" in serve["message"]
    assert serve["fix"] == "pip install 'mstar-serve[serve]'"


@pytest.mark.slow
def test_torch_reports_its_threads(run_doctor):
    assert "threads" in run_doctor("--torch")["torch runtime"]["message"]


# ---------------------------------------------------------------- GPUs
@pytest.fixture
def check_gpus(tmp_path, monkeypatch):
    """What it finds on a host with this number of GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor, "_version", lambda name: "2.13.0+cu130")

    def check(count, placement=""):
        directory = tmp_path / str(count)
        for number in range(count):
            (directory / str(number)).mkdir(parents=True, exist_ok=True)
        return [(result.state, result.message) for result in doctor._gpus(placement, directory, ("no-such-command",))]

    return check


def test_gpus_are_compared_with_the_placement(check_gpus, monkeypatch, tmp_path):
    assert check_gpus(0) == [("ok", "no NVIDIA GPU found")]
    (none_used,) = check_gpus(2)
    unused = "2 GPUs are visible and no worker of the placement uses one (no placement: pass --placement FILE)"
    assert none_used == ("warn", unused)
    placement = tmp_path / "placement.toml"
    placement.write_text('[workers.local]\ndevice = "cuda"')
    assert check_gpus(1, str(placement)) == [("ok", "1 visible, all used by workers")]
    assert check_gpus(2, str(placement)) == [("warn", "no worker uses 1 of 2 visible GPUs: `cuda:1`")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert check_gpus(2) == [("ok", "2, of which none is visible (CUDA_VISIBLE_DEVICES=)")]


def test_gpus_need_a_build_of_torch_that_can_use_them(check_gpus, monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: "2.13.0+cpu")
    build, _ = check_gpus(1)
    assert build == ("warn", "1 visible, but torch 2.13.0+cpu is a CPU build")
