"""No URL makes the server speak to what is inside: in a network of its own, where every packet is seen."""

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


def run(*words, **how):
    return subprocess.run(words, check=True, capture_output=True, text=True, **how)


@pytest.fixture
def namespace():
    """A network with a loopback, an address that is public, and a way out that leads nowhere."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making a network namespace needs root and the command ip")
    name = f"mstar-{os.getpid()}"
    own = Path("/etc/netns") / name
    own.mkdir(parents=True)
    (own / "resolv.conf").write_text(f"nameserver {RESOLVER}\noptions timeout:1 attempts:1\n")
    (own / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    try:
        run("ip", "netns", "add", name)
        for words in (
            "link set lo up",
            "link add way type veth peer name nowhere",
            "link set way arp off",  # so that packets are sent although nobody is there
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
        shutil.rmtree(own)


@pytest.mark.slow
def test_no_url_reaches_what_is_inside(namespace):
    inside = run(
        "ip", "netns", "exec", namespace, sys.executable, "-m", "tests.netns.ssrf_probe", cwd=ROOT, timeout=100
    )
    told = json.loads(inside.stdout.splitlines()[-1])
    public = f"{PUBLIC} 80"
    assert told["control"] == ["127.0.0.1 9"]  # a packet is seen when there is one
    assert told["allowed"] == [[200, "<ImageInput>"], [public]]
    assert told["once"] == [[200, "<ImageInput>"], [public], 1]  # resolved once, and spoken to there
    assert told["rebound"] == [[400, "url_not_allowed"], [public]]  # and again for a redirect
    assert len(told["hostile"]) >= 60
    for url, status, code, packets in told["hostile"]:
        assert status == 400, url
        assert code == "url_not_allowed" or (code == "url_failed" and ("a..evil" in url or "://.evil" in url)), (
            url,
            code,
        )
        assert packets in ([], [public] if "?to=" in url else []), (url, packets)
