"""Deployment for chaos tests: three models on three interchangeable workers."""

import time
from contextlib import contextmanager
from pathlib import Path

from mstar.launch.local_launcher import LocalLauncher
from mstar.walk.load import load_model
from tests.integration.deployment_clients import (
    REQUEST_TIMEOUT_S,
    TARGETS,
    Client,
    Oracle,
    add_frontend,
    module_of,
    wait_for_clients,
)

MODELS = Path(__file__).with_name("faulty_models.py")
TRAPS_FILE, ROBOT_FILE = f"{MODELS}:Traps", f"{MODELS}:Robot"
TRAPS = load_model(TRAPS_FILE)
TrapRequest = module_of(TRAPS).TrapRequest
NAMES = ("orpheus", "qwen3_omni", "bagel")
WORKERS = ("a", "b", "c")
_ALL = '["a", "b", "c"]'
PLACEMENTS = {
    "orpheus": f'[place]\nlm = {_ALL}\n"lm.prefill" = ["c", "a"]\nsnac = ["b", "c"]',
    "qwen3_omni": f'[place]\naudio_encoder = ["b", "c"]\nthinker = {_ALL}\ntalker = {_ALL}\npredictor = ["a", "b"]\n'
    f"vocoder = {_ALL}",
    "bagel": f'[place]\nlm = {{ workers = {_ALL}, spread = true }}\nvit = ["a", "b"]\nvae = ["b", "c"]\n'
    f'guidance = {_ALL}\n[walks.read]\nlm = ["c", "b"]',
}
"""Every component on at least two workers; prefill and decode separate; states that are spread and moved."""
REQUEST_MIX = [*[("orpheus", number % 3) for number in range(7)], *[("bagel", number % 3) for number in range(6)]]
REQUEST_MIX += [("qwen3_omni", number) for number in (1, 1, 2)]
"""Sixteen requests: a model, and the index of its request."""


def build_oracles():
    """Oracle of each model."""
    return {name: Oracle.from_file(TARGETS[name]) for name in NAMES}


@contextmanager
def launch_deployment(**options):
    """The deployment and a front end."""
    with LocalLauncher({name: TARGETS[name] for name in NAMES}, PLACEMENTS, **options) as local:
        yield local, add_frontend(local)


class RequestRound:
    """All requests of the mix, concurrently."""

    def __init__(self, front_end, oracles):
        self.oracles = oracles
        self.start = time.monotonic()
        requests = [(name, oracles[name].requests[number]) for name, number in REQUEST_MIX]
        self.clients = [Client(front_end, name, request, timeout_s=REQUEST_TIMEOUT_S) for name, request in requests]

    @property
    def unfinished(self):
        """Clients without an end."""
        return [client for client in self.clients if client.end is None]

    def wait_and_check(self):
        """Wait for all clients and check each of them."""
        wait_for_clients(self.clients)
        for (name, number), client in zip(REQUEST_MIX, self.clients, strict=True):
            self.oracles[name].check(client, number)

    @property
    def max_gaps_s(self):
        return [client.max_gap_s for client in self.clients]


def wait_until(condition, seconds=10.0):
    """Poll a condition until it is true, or fail after the timeout."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"condition not met within {seconds} s"
        time.sleep(0.005)


def is_fully_up(local):
    """Whether all processes and a standby are up."""
    return set(local.health().values()) == {"up"} and "standby" in local.stats()["processes"]


REQUEST_STATS = (
    "requests",
    "queue",
    "unreleased",
    "waiting",
    "running",
    "states",
    "exports",
    "early",
    "engine_states",
    "slots",
)
REQUEST_STATS += ("streams", "out_of_order")
"""Gauges that must be 0 while no request runs."""


def collect_stats(front_end, processes):
    """Counters and gauges of processes, as "process.name"."""
    queries = {peer.name: front_end.query_counts(peer) for peer in (*processes, front_end.peer)}
    return {f"{name}.{what}": n for name, answer in queries.items() for what, n in answer.result(5.0).items()}


def request_stats(front_end, processes):
    """Nonzero gauges of requests."""
    return {
        what: n
        for what, n in collect_stats(front_end, processes).items()
        if n and what.rpartition(".")[2] in REQUEST_STATS
    }


def wait_until_idle(front_end, processes, seconds=1.0):
    """Wait until all request gauges are 0. Returns the elapsed seconds."""
    start = time.monotonic()
    while left := request_stats(front_end, processes):
        assert time.monotonic() - start < seconds, f"still held: {left}"
        time.sleep(0.02)
    return time.monotonic() - start


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
