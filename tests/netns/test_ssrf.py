"""SSRF protection: no URL makes the server contact a private address, verified by packet capture."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.netns.ssrf_probe import PUBLIC, RESOLVER

ROOT = Path(__file__).parents[2]


def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, **options)


@pytest.fixture
def namespace():
    """A network namespace with loopback, a public address, and a default route to nowhere."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    name = f"mstar-{os.getpid()}"
    config_directory = Path("/etc/netns") / name
    config_directory.mkdir(parents=True)
    (config_directory / "resolv.conf").write_text(f"nameserver {RESOLVER}\noptions timeout:1 attempts:1\n")
    (config_directory / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    try:
        run("ip", "netns", "add", name)
        for words in (
            "link set lo up",
            "link add way type veth peer name nowhere",
            "link set way arp off",  # send packets without a neighbor
            "link set nowhere up",
            f"address add {PUBLIC}/32 dev way",
            "address add 2606:2800:220::1/64 dev way nodad",
            "link set way up",
            "route add default dev way",
            "-6 route add default dev way",
        ):
            run("ip", "-n", name, *words.split())
        yield name
    finally:
        for process in run("ip", "netns", "pids", name).stdout.split():
            os.kill(int(process), signal.SIGKILL)
        run("ip", "netns", "delete", name)
        shutil.rmtree(config_directory)


@pytest.mark.slow
def test_no_url_reaches_a_private_address(namespace):
    probe = run("ip", "netns", "exec", namespace, sys.executable, "-m", "tests.netns.ssrf_probe", cwd=ROOT, timeout=100)
    report = json.loads(probe.stdout.splitlines()[-1])
    public = f"{PUBLIC} 80"
    assert report["control"] == ["127.0.0.1 9"]  # the capture works
    assert report["allowed"] == [[200, "<ImageInput>"], [public]]
    assert report["once"] == [[200, "<ImageInput>"], [public], 1]  # resolved once, and connected to that address
    assert report["rebound"] == [[400, "url_not_allowed"], [public]]  # and again for a redirect
    assert len(report["hostile"]) >= 60
    for url, status, code, packets in report["hostile"]:
        assert status == 400, url
        assert code == "url_not_allowed" or (code == "url_failed" and ("a..evil" in url or "://.evil" in url)), (
            url,
            code,
        )
        assert packets in ([], [public] if "?to=" in url else []), (url, packets)
