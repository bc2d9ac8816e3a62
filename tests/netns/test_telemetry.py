"""Telemetry of dependencies is off: a started server sends no packet but to its client, verified by packet capture."""

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from mstar.walk.load import ENTRY_POINT_GROUP

ROOT = Path(__file__).parents[2]
NAMESERVER = "192.0.2.53"
OBSERVED_S = 20
"""Seconds to observe the ready server. ONNX Runtime with telemetry resolves its collector after at most 12 s."""
ONNX_MODELS = ("hibari", "terrain")


def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, **options)


@pytest.fixture
def namespace():
    """A network namespace with loopback, and a default route to nowhere, with a name server there."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    name = f"mstar-t-{os.getpid()}"
    config_directory = Path("/etc/netns") / name
    config_directory.mkdir(parents=True)
    (config_directory / "resolv.conf").write_text(f"nameserver {NAMESERVER}\noptions timeout:1 attempts:1\n")
    (config_directory / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    try:
        run("ip", "netns", "add", name)
        for words in (
            "link set lo up",
            "link add way type veth peer name nowhere",
            "link set way arp off",  # send packets without a neighbor
            "link set nowhere up",
            "address add 198.51.100.7/32 dev way",
            "link set way up",
            "route add default dev way",
        ):
            run("ip", "-n", name, *words.split())
        yield name
    finally:
        for process in run("ip", "netns", "pids", name).stdout.split():
            os.kill(int(process), signal.SIGKILL)
        run("ip", "netns", "delete", name)
        shutil.rmtree(config_directory)


def observe(namespace, tmp_path, models):
    """Serve models, by name, in the namespace. Returns the report of the probe."""
    manifest, home = tmp_path / "mstar.toml", tmp_path / "home"
    manifest.write_text("\n".join(f'[models.{name}]\nmodel = "{target}"' for name, target in models.items()))
    home.mkdir()
    words = ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.netns.telemetry_probe", str(manifest)]
    environment = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    probe = subprocess.run(
        [*words, str(OBSERVED_S)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert probe.returncode == 0, probe.stderr
    return json.loads(probe.stdout.splitlines()[-1])


def assert_silent(report):
    assert report["control"], "the capture does not work"
    assert all(packet.startswith(f"17 {NAMESERVER} 53 ") for packet in report["control"])
    assert report["statuses"] == [200]
    assert report["packets"] == []
    assert report["files"] == []


@pytest.mark.slow
def test_a_server_with_onnx_models_sends_no_packet(namespace, tmp_path):
    assert_silent(observe(namespace, tmp_path, {name: name for name in ONNX_MODELS}))


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_server_with_every_shipped_model_sends_no_packet(namespace, tmp_path):
    from tests.netns.shipped_models import save_models  # imports torch and transformers

    models = save_models(tmp_path / "models")
    assert models.keys() == {point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    assert_silent(observe(namespace, tmp_path, models))
