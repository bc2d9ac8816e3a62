"""Entry point of child processes: configuration, parent check, and exit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from mstar.config import ConductorConfig, RuntimeConfig
from tests.launch.launcher_harness import wait_until

MODEL = Path(__file__).parents[2] / "examples" / "orpheus.py"


def child(launcher, *models):
    command = [sys.executable, "-P", "-m", "mstar.launch.child_main", str(launcher), *map(str, models)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)


def make_config(directory, model):
    return ConductorConfig(
        name="conductor",
        incarnation=0,
        directory=str(directory),
        key=bytes(32),
        peers={"launcher": 0},
        models={"m": str(model)},
        placements={"m": ""},
        options=RuntimeConfig(),
    )


def test_a_standby_waits_ready_and_exits_when_not_needed():
    with child(os.getpid(), MODEL) as standby:
        wait_until(lambda: "pipe_read" in Path(f"/proc/{standby.pid}/wchan").read_text())  # all imports are done
        standby.send_signal(signal.SIGINT)  # ^C is for the launcher
        time.sleep(0.05)
        assert standby.poll() is None
        assert standby.communicate() == (None, b"")
    assert standby.returncode == 0


def test_a_standby_survives_a_model_that_cannot_be_preloaded(tmp_path):
    (tmp_path / "model.py").write_text("raise RuntimeError('no home directory')")
    with child(os.getpid(), tmp_path / "model.py") as standby:
        assert standby.communicate() == (None, b"")
    assert standby.returncode == 0


MODEL_WITH_ENVIRONMENT = """
import os
import pathlib

pathlib.Path(__file__).with_name("seen").write_text(os.environ.get("ORT_DISABLE_TELEMETRY", ""))
"""


def test_telemetry_of_dependencies_is_off_before_a_model_is_imported(tmp_path, monkeypatch):
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    (tmp_path / "model.py").write_text(MODEL_WITH_ENVIRONMENT)
    with child(os.getpid(), tmp_path / "model.py") as standby:
        wait_until(lambda: "pipe_read" in Path(f"/proc/{standby.pid}/wchan").read_text())
        standby.communicate()
    assert (tmp_path / "seen").read_text() == "1"


def test_the_child_of_another_launcher_does_not_start(tmp_path):
    with child(os.getppid()) as stray:
        try:
            stray.communicate(msgspec.msgpack.encode(make_config(tmp_path, MODEL)), timeout=30)
        finally:
            stray.kill()
    assert stray.returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_printed_without_a_traceback(tmp_path):
    with child(os.getpid()) as conductor:
        _, output = conductor.communicate(msgspec.msgpack.encode(make_config(tmp_path, tmp_path / "none.py")))
    assert output.decode() == f"{tmp_path}/none.py: no such file\n  fix: pass the path of a model's .py file\n"
    assert conductor.returncode == 1


def test_the_key_is_not_shown(tmp_path):
    assert repr(make_config(tmp_path, MODEL)) == "ConductorConfig(conductor.0)"


def test_ps_shows_the_role_of_a_process(tmp_path):
    def title(process):
        folder = Path(f"/proc/{process.pid}")
        return (folder / "cmdline").read_bytes().strip(b"\0").decode(), (folder / "comm").read_text().strip()

    with child(os.getpid(), MODEL) as process:
        wait_until(lambda: title(process) == ("mstar: standby", "standby"))
        process.stdin.write(msgspec.msgpack.encode(make_config(tmp_path, MODEL)))
        process.stdin.close()
        wait_until(lambda: title(process) == ("mstar: conductor", "conductor"))
        process.kill()
