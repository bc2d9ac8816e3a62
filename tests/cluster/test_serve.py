"""`mstar serve --cluster`: on a Ray cluster with token authentication, and rejected without."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.hosts import Hosts, child_of, unsupported_reason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
MSTAR = str(Path(sys.executable).with_name("mstar"))
PLACEMENT = '[place]\nletters = ["a", "b"]\n[workers.a]\nhost = "10.77.0.2"\n'
CHAT_SCRIPT = """
import json, sys, urllib.request
body = {"model": "parrot", "messages": [{"role": "user", "content": "good morning"}]}
headers = {"Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(), headers)
print(json.load(urllib.request.urlopen(request, timeout=20))["choices"][0]["message"]["content"])
"""


class ClusterServer:
    """A server on the first host."""

    def __init__(self, hosts, *words):
        self._hosts = hosts
        command = [MSTAR, "serve", "tests/server/toy_models.py:Parrot", "--name", "parrot", "--port", "0", *words]
        command += ["--cluster", "auto", "--log-format", "json"]
        self.process = hosts.inside(1, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def wait_line(self, text):
        """Wait for the next log line with this text."""
        for line in self.process.stdout:
            if text in line:
                return json.loads(line)
        raise AssertionError(f"exited with {self.process.wait()} before the line {text}")

    def chat(self, url):
        client = self._hosts.inside(1, sys.executable, "-c", CHAT_SCRIPT, url, stdout=subprocess.PIPE, text=True)
        return client.communicate(timeout=30)[0].strip()

    def signal(self, number):
        subprocess.run(["kill", f"-{int(number)}", str(child_of(self.process.pid))], check=True)


def test_a_model_is_served_over_hosts_and_its_workers_are_replaced(hosts, tmp_path):
    placement = tmp_path / "placement.toml"
    placement.write_text(PLACEMENT)
    server = ClusterServer(hosts, "--placement", str(placement))
    try:
        url = server.wait_line('"url"')["url"]
        server.wait_line("ready")
        assert server.chat(url) == "good morning"
        server.signal(signal.SIGHUP)
        server.wait_line("all workers replaced")
        assert server.chat(url) == "good morning"
        start = time.monotonic()
        server.signal(signal.SIGTERM)
        server.wait_line("stopped")
        assert server.process.wait(20) == 0
        assert time.monotonic() - start < 10
    finally:
        if server.process.poll() is None:
            server.signal(signal.SIGKILL)
            server.process.wait(20)
        server.process.stdout.close()


class UnauthenticatedHosts(Hosts):
    """A cluster without token authentication."""

    def environment(self):
        return {name: value for name, value in super().environment().items() if name != "RAY_AUTH_TOKEN"} | {
            "RAY_AUTH_MODE": "disabled"
        }


@pytest.mark.nightly
def test_a_cluster_without_token_authentication_is_rejected():
    if reason := unsupported_reason():
        pytest.skip(reason)
    hosts = UnauthenticatedHosts(1)
    try:
        hosts.open()
        server = ClusterServer(hosts)
        output = server.process.communicate(timeout=60)[0]
        assert server.process.returncode == 1
        assert "requires no token: any host that reaches it can run code there" in output
        assert "fix: `ray get-auth-token" in output
    finally:
        hosts.close()
