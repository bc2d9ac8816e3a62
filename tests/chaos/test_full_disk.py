"""Full and read-only file systems: workers serve, restart and stop without the files they cannot write."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.served_model import ToyServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def namespace_command():
    """Command prefix for a mount namespace; skips the test where that is not permitted."""
    for options in (["--mount"], ["--user", "--map-root-user", "--mount"]):
        command = ["unshare", *options, "--propagation", "private"]
        mount = [*command, "mount", "-t", "tmpfs", "none", "/mnt"]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("mount namespaces are not permitted here")


@pytest.fixture
def in_namespace():
    """Returns a prefix that runs a shell command in a mount namespace, then the server."""
    prefix = namespace_command()
    return lambda setup: [*prefix, "sh", "-c", f'{setup} && exec "$@"', "sh"]


def fill(directory):
    """Extend a file until its file system is full."""
    with suppress(OSError), (directory / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_run_directory_is_survived(tmp_path, monkeypatch, in_namespace):
    run_root = tmp_path / "run"
    run_root.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_root))
    with ToyServer(tmp_path, prefix=in_namespace(f"mount -t tmpfs -o size=1m none {run_root}")) as server:
        mounted = Path(f"/proc/{server.process.pid}/root{run_root}")
        fill(mounted)
        assert server.generate(50).status_code == 200, "the black box has its blocks already"
        for _ in range(2):
            (pid,) = server.worker_pids()
            os.kill(pid, signal.SIGKILL)
            # Filled again and again: the files of the dead worker are removed meanwhile.
            server.wait_for(lambda pid=pid: fill(mounted) or server.worker_pids() not in ([], [pid]))
            server.wait_for(lambda: server.client.get("/ready").status_code == 200)
            assert server.generate(50).status_code == 200
        server.wait_for_line(r"no black box: .*No space left on device")
        assert not [line for line in server.lines if "SIGBUS" in line or "failed to start" in line]


def test_a_read_only_run_directory_is_replaced_by_another_one(tmp_path, monkeypatch, in_namespace):
    run_root = tmp_path / "run"
    run_root.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_root))
    setup = f"mount --bind {run_root} {run_root} && mount -o remount,ro,bind {run_root}"
    with ToyServer(tmp_path, prefix=in_namespace(setup)) as server:
        server.wait_for_line(rf"no run directory in {run_root}: .*Read-only file system")
        assert server.generate().status_code == 200


def test_output_on_a_full_disk_does_not_stop_the_server(tmp_path):
    with ToyServer(tmp_path, output=Path("/dev/full")) as server:
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        server.wait_for(lambda: server.client.get("/ready").status_code == 200)
        assert all(server.generate().status_code == 200 for _ in range(50))
        server.process.send_signal(signal.SIGHUP)
        assert all(server.generate().status_code == 200 for _ in range(10))
