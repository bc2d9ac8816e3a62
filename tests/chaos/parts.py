"""A deployment to be hurt: three models of different kinds over three workers that can stand in for each other."""

import time
from contextlib import contextmanager
from pathlib import Path

from mstar.launch.local import Local
from mstar.walk.load import load_model
from tests.served.parts import TARGETS, Client, Oracle, front, module_of

MODELS = Path(__file__).with_name("models.py")
TRAPS_FILE, ROBOT_FILE = f"{MODELS}:Traps", f"{MODELS}:Robot"
TRAPS = load_model(TRAPS_FILE)
Ask = module_of(TRAPS).Ask
NAMES = ("orpheus", "qwen3_omni", "bagel")
WORKERS = ("a", "b", "c")
_ALL = '["a", "b", "c"]'
PLACEMENTS = {
    "orpheus": f'[place]\nlm = {_ALL}\n"lm.prefill" = ["c", "a"]\nsnac = ["b", "c"]',
    "qwen3_omni": f'[place]\near = ["b", "c"]\nthinker = {_ALL}\ntalker = {_ALL}\npredictor = ["a", "b"]\n'
    f"vocoder = {_ALL}",
    "bagel": f'[place]\nlm = {{ workers = {_ALL}, spread = true }}\nvit = ["a", "b"]\nvae = ["b", "c"]\n'
    f'guidance = {_ALL}\n[walks.read]\nlm = ["c", "b"]',
}
"""Every component on at least two workers; prefill and decode apart; states that are spread, and that move."""
MIX = [*[("orpheus", number % 3) for number in range(7)], *[("bagel", number % 3) for number in range(6)]]
MIX += [("qwen3_omni", number) for number in (1, 1, 2)]
"""Sixteen requests: a model, and which of its requests."""


def oracles():
    """What is right, of each model."""
    return {name: Oracle.of(TARGETS[name]) for name in NAMES}


@contextmanager
def launched(**how):
    """The deployment and a front end."""
    with Local({name: TARGETS[name] for name in NAMES}, PLACEMENTS, **how) as local:
        yield local, front(local)


class Round:
    """All requests of the mix at the same time."""

    def __init__(self, front_end, oracles):
        self.oracles = oracles
        self.start = time.monotonic()
        self.clients = [Client(front_end, name, oracles[name].requests[number]) for name, number in MIX]

    @property
    def open(self):
        """Those that have not ended."""
        return [client for client in self.clients if client.end is None]

    def check(self, seconds=30.0):
        """Wait for all; each must have got exactly what is right."""
        for (name, number), client in zip(MIX, self.clients, strict=True):
            self.oracles[name].judge(client.wait(seconds), number)

    @property
    def silences(self):
        return [client.silence for client in self.clients]


def wait_until(condition, seconds=10.0):
    """Wait until something holds, but not for ever."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not come true"
        time.sleep(0.005)


def is_whole(local):
    """Whether everybody is up, and a spare there."""
    return set(local.health().values()) == {"up"} and "spare" in local.stock()["processes"]


def peers(local):
    """Every child in its present life."""
    return [child.peer for child in local._supervisor.children.values()]


HELD = ("requests", "queue", "unreleased", "waiting", "running", "states", "exports", "early", "engine_states", "slots")
HELD += ("streams", "ahead")
"""What must be nothing when nothing is asked for."""


def stocks(front_end, processes):
    """What processes hold, by process and by what it is."""
    asked = {peer.name: front_end.take_stock(peer) for peer in (*processes, front_end.peer)}
    return {f"{name}.{what}": n for name, answer in asked.items() for what, n in answer.result(5.0).items()}


def held(front_end, processes):
    """What they hold for requests."""
    return {what: n for what, n in stocks(front_end, processes).items() if n and what.rpartition(".")[2] in HELD}


def settle(front_end, processes, seconds=1.0):
    """Wait until nothing is held; how long that took."""
    start = time.monotonic()
    while left := held(front_end, processes):
        assert time.monotonic() - start < seconds, f"still held: {left}"
        time.sleep(0.02)
    return time.monotonic() - start


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
