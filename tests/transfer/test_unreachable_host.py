"""Transfers from a disconnected host time out, and work again when it is back."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.tiers import ci_cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root"),
]


@pytest.fixture
def hosts():
    """Two network namespaces connected by a veth pair."""
    local, remote = f"mc{os.getpid()}a", f"mc{os.getpid()}b"
    try:
        for name in (local, remote):
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        cable = ["ip", "-n", local, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", remote]
        subprocess.run(cable, check=True)
        for name, ip in ((local, "10.91.0.1/24"), (remote, "10.91.0.2/24")):
            subprocess.run(["ip", "-n", name, "addr", "add", ip, "dev", "cable"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "cable", "up"], check=True)
        yield local, remote
    finally:
        for name in (local, remote):
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.parametrize("kind", ci_cases(["mooncake", "tcp"], "mooncake"))
def test_a_disconnected_host_does_not_block_readers(hosts, kind):
    if kind == "mooncake":
        pytest.importorskip("mooncake")
    local, remote = hosts
    command = ["ip", "netns", "exec", local, sys.executable, "-m", "tests.transfer.unreachable_host", kind, remote]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["before"][0] is True
    for name, limit in (("known, disconnected", 6.5), ("unknown, disconnected", 4)):
        value, seconds = results[name]
        assert value is None, "must not be readable"
        assert seconds < limit, results
    assert results["healed"][0] is True, results
    assert results["slots"] == 0, "unread slots are freed when their owner answers again"
    assert done.stderr == ""
