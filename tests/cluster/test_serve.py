"""`mstar serve --cluster`: over the hosts of a cluster that asks for a token, and not over one that asks for none."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.hosts import Hosts, child_of, why_unsupported

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
MSTAR = str(Path(sys.executable).with_name("mstar"))
PLACEMENT = '[place]\nletters = ["a", "b"]\n[workers.a]\nhost = "10.77.0.2"\n'
CHAT_SCRIPT = """
import json, sys, urllib.request
body = {"model": "parrot", "messages": [{"role": "user", "content": "good morning"}]}
head = {"Content-Type": "application/json"}
asked = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(), head)
print(json.load(urllib.request.urlopen(asked, timeout=20))["choices"][0]["message"]["content"])
"""


class ClusterServer:
    """A server on the first host."""

    def __init__(self, hosts, *words):
        self._hosts = hosts
        command = [MSTAR, "serve", "tests/server/toy_models.py:Parrot", "--name", "parrot", "--port", "0", *words]
        command += ["--cluster", "auto", "--log-format", "json"]
        self.process = hosts.inside(1, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def line(self, text):
        """The next line with this in it."""
        for line in self.process.stdout:
            if text in line:
                return json.loads(line)
        raise AssertionError(f"it ended with {self.process.wait()} before it said {text}")

    def ask(self, url):
        asking = self._hosts.inside(1, sys.executable, "-c", CHAT_SCRIPT, url, stdout=subprocess.PIPE, text=True)
        return asking.communicate(timeout=30)[0].strip()

    def signal(self, number):
        subprocess.run(["kill", f"-{int(number)}", str(child_of(self.process.pid))], check=True)


def test_a_model_is_served_over_hosts_and_its_workers_are_replaced(hosts, tmp_path):
    placement = tmp_path / "placement.toml"
    placement.write_text(PLACEMENT)
    served = ClusterServer(hosts, "--placement", str(placement))
    try:
        url = served.line('"url"')["url"]
        served.line("ready")
        assert served.ask(url) == "good morning"
        served.signal(signal.SIGHUP)
        served.line("all workers are replaced")
        assert served.ask(url) == "good morning"
        began = time.monotonic()
        served.signal(signal.SIGTERM)
        served.line("ended")
        assert served.process.wait(20) == 0
        assert time.monotonic() - began < 10
    finally:
        if served.process.poll() is None:
            served.signal(signal.SIGKILL)
            served.process.wait(20)
        served.process.stdout.close()


class OpenHosts(Hosts):
    """A cluster that asks for no token."""

    def environment(self):
        return {name: value for name, value in super().environment().items() if name != "RAY_AUTH_TOKEN"} | {
            "RAY_AUTH_MODE": "disabled"
        }


def test_a_cluster_that_asks_for_no_token_is_refused():
    if why := why_unsupported():
        pytest.skip(why)
    hosts = OpenHosts(1)
    try:
        hosts.open()
        served = ClusterServer(hosts)
        said = served.process.communicate(timeout=60)[0]
        assert served.process.returncode == 1
        assert "requires no token: any host that reaches it can run code there\n  fix: `ray get-auth-token" in said
    finally:
        hosts.close()
