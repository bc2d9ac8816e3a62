"""A host that is cut off holds no thread up for long, and is read again when it is back."""

import json
import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root"),
]


@pytest.fixture
def hosts():
    """Two network namespaces with a cable between them."""
    here, there = f"mc{os.getpid()}a", f"mc{os.getpid()}b"
    try:
        for name in (here, there):
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        cable = ["ip", "-n", here, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", there]
        subprocess.run(cable, check=True)
        for name, ip in ((here, "10.91.0.1/24"), (there, "10.91.0.2/24")):
            subprocess.run(["ip", "-n", name, "addr", "add", ip, "dev", "cable"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "cable", "up"], check=True)
        yield here, there
    finally:
        for name in (here, there):
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.parametrize("kind", ["mooncake", "tcp"])
def test_a_host_that_is_cut_off_holds_nobody_up(hosts, kind):
    if kind == "mooncake":
        pytest.importorskip("mooncake")
    here, there = hosts
    command = ["ip", "netns", "exec", here, sys.executable, "-m", "tests.transfer.unreachable_host", kind, there]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["before"][0] is True
    for name, limit in (("known, cut off", 6.5), ("unknown, cut off", 4)):
        value, seconds = found[name]
        assert value is None, "it cannot have been read"
        assert seconds < limit, found
    assert found["healed"][0] is True, found
    assert found["slots"] == 0, "what could not be read was freed when its owner answered again"
    assert done.stderr == ""
