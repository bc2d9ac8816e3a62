"""Kills during multi-turn requests: routes that wait or are interrupted continue."""

import os
import random
import signal
from itertools import cycle

import pytest

from mstar.launch.local_launcher import LocalLauncher
from mstar.sim.models import SimRequest
from tests.chaos.deployment import MODELS, is_fully_up, wait_until
from tests.integration.deployment_clients import add_frontend
from tests.integration.test_client_input import MultiTurnClient
from tests.tiers import ci_cases

pytestmark = pytest.mark.slow
PLACEMENT = '[place]\nlm = ["a", "b"]\nvoice = ["b", "c"]'
SEED = 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rounds", ci_cases([4, 12], 4))
def test_kills_between_and_within_turns(rounds, report):
    rng, victims = random.Random(SEED), cycle(("a", "conductor", "b", "c"))
    with LocalLauncher({"chat": f"{MODELS}:Dialogue"}, {"chat": PLACEMENT}) as local:
        front_end = add_frontend(local)
        for _ in range(rounds):
            wait_until(lambda: is_fully_up(local))
            clients = [MultiTurnClient(front_end, SimRequest(key, steps=1000 if key % 2 else 5)) for key in range(6)]
            for turn in range(3):
                if turn == 1:
                    os.kill(local.pid(next(victims)), signal.SIGKILL)
                for key, client in enumerate(clients):
                    client.read(limit=rng.randint(1, 9) if key % 2 else None)
                    client.send(turn, interrupts=bool(key % 2))
            for client in clients:
                client.read()
                client.check()
        assert len(local.recent_exits) == rounds
    report(f"seed {SEED}: {rounds} kills, {6 * rounds} requests of 4 turns, half of them interrupted: all as eager")
