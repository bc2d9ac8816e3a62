"""Processes are killed while clients talk: a route that waits, or is being cut, goes on as if nothing had been."""

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

pytestmark = pytest.mark.slow
PLACEMENT = '[place]\nlm = ["a", "b"]\nvoice = ["b", "c"]'
ROUNDS, SEED = 12, 1


@pytest.mark.timeout(180)
def test_kills_between_and_within_turns(report):
    chosen, victims = random.Random(SEED), cycle(("a", "conductor", "b", "c"))
    with LocalLauncher({"chat": f"{MODELS}:Dialogue"}, {"chat": PLACEMENT}) as local:
        front_end = add_frontend(local)
        for _ in range(ROUNDS):
            wait_until(lambda: is_fully_up(local))
            talks = [MultiTurnClient(front_end, SimRequest(key, steps=1000 if key % 2 else 5)) for key in range(6)]
            for turn in range(3):
                if turn == 1:
                    os.kill(local.pid(next(victims)), signal.SIGKILL)
                for key, talk in enumerate(talks):
                    talk.read(most=chosen.randint(1, 9) if key % 2 else None)
                    talk.send(turn, interrupts=bool(key % 2))
            for talk in talks:
                talk.read()
                talk.check()
        assert len(local.recent_exits) == ROUNDS
    report(f"said, seed {SEED}: {ROUNDS} kills, {6 * ROUNDS} talks of 4 turns, half of them cut: all as eager")
