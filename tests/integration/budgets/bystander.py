"""A server with the keys of two tenants, and the latency of one while the other sends an expensive request."""

import http.client
import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.cli.test_serve import start_server, wait_ready

KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}
MAX_RISE_S = 0.1
"""Maximum rise of the p99 of other clients."""
TRIES = 3
"""The best of three counts: other work on the machine only adds to a latency."""
BASELINE_S = 1.0
WARMUP_REQUESTS = 10
MODELS = Path(__file__).with_name("budget_models.py")
PARROT = Path(__file__).parents[2] / "server" / "toy_models.py"
MANIFEST = f"""
[models.parrot]
model = "{PARROT}:Parrot"
[models.tokenizing]
model = "{MODELS}:Tokenizing"
[models.scribe]
model = "{MODELS}:Measuring"
"""


class BudgetServer:
    """A running server with a client for each tenant."""

    def __init__(self, process, url):
        self.process = process
        self.url = url
        self.alice, self.bob = (self.client(name) for name in KEYS)

    def client(self, name):
        headers = {"Authorization": f"Bearer {KEYS[name]}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=120)

    def rss_bytes(self, role):
        """Private memory of the front end or the conductor: pages that it shares with other processes are not its."""
        pids = {"frontend": [self.process.pid], "conductor": _children(self.process.pid, "conductor")}[role]
        return sum(_anonymous_bytes(pid) for pid in pids)

    def held_bytes(self):
        """Memory of the front end and the conductor, with the shared memory that they map."""
        return sum(_rss_bytes(pid) for pid in (self.process.pid, *_children(self.process.pid, "conductor")))


def _children(pid, word):
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if int(status.rpartition(")")[2].split()[1]) == pid and word in command:
            pids.append(int(folder.name))
    return pids


def _status_kib(pid, field):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def _rss_bytes(pid):
    return _status_kib(pid, "VmRSS:") * 1024


def _anonymous_bytes(pid):
    return _status_kib(pid, "RssAnon:") * 1024


@contextmanager
def serve_budgets(folder, *options):
    """Serve the models of MANIFEST to alice and bob, in a process of its own."""
    manifest = folder / "mstar.toml"
    manifest.write_text(MANIFEST)
    keys = [argument for key in KEYS.values() for argument in ("--api-key", key)]
    with start_server(manifest, *keys, *options) as (process, url):
        wait_ready(process)
        threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the server
        server = BudgetServer(process, url)
        try:
            yield server
        finally:
            server.alice.close()
            server.bob.close()


def chat(client, text="x", model="parrot", **fields):
    """Send a chat completion with one message."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1} | fields
    return client.post("/v1/chat/completions", json=body)


def post(server, name, path, body, media_type):
    """POST bytes. Unlike httpx2, it lets other threads of this process run while it sends."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    headers = {"Authorization": f"Bearer {KEYS[name]}", "Content-Type": media_type}
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    return response.status, content


class Bystander:
    """Sends one request after the other from a thread and records how long each takes."""

    def __init__(self, send):
        self._send = send
        self._seconds = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        for _ in range(WARMUP_REQUESTS):
            self._send()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    def _run(self):
        while not self._is_over.is_set():
            begun = time.perf_counter()
            assert self._send().status_code == 200
            self._seconds.append(time.perf_counter() - begun)
            self._is_over.wait(0.005)

    def take_p99_s(self):
        """99th percentile of the requests since the last call. The one that runs is waited for."""
        count = len(self._seconds)
        while len(self._seconds) == count:
            time.sleep(0.001)
        taken, self._seconds = sorted(self._seconds), []
        return taken[min(len(taken) - 1, int(len(taken) * 0.99))]


def p99_rise_s(server, attack, send=None):
    """Least rise of bob's p99 while `attack` runs, of TRIES; its p99 without is measured right before."""
    rises = []
    for _ in range(TRIES):
        with server.client("bob") as client, Bystander(send or (lambda: chat(client))) as bystander:
            time.sleep(BASELINE_S)
            before = bystander.take_p99_s()
            attack()
            rises.append(bystander.take_p99_s() - before)
        if rises[-1] <= MAX_RISE_S:
            break
    return min(rises)
