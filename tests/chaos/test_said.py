"""Processes are killed while clients talk: a route that waits, or is being cut, goes on as if nothing had been."""

import os
import random
import signal
from itertools import cycle

import pytest

from mstar.launch.local import Local
from mstar.sim.models import Ask
from tests.chaos.parts import MODELS, is_whole, wait_until
from tests.served.parts import front
from tests.served.test_said import Talk

pytestmark = pytest.mark.slow
PLACEMENT = '[place]\nlm = ["a", "b"]\nvoice = ["b", "c"]'
ROUNDS, SEED = 12, 1


@pytest.mark.timeout(180)
def test_kills_between_and_within_turns(report):
    chosen, victims = random.Random(SEED), cycle(("a", "conductor", "b", "c"))
    with Local({"chat": f"{MODELS}:Dialogue"}, {"chat": PLACEMENT}) as local:
        front_end = front(local)
        for _ in range(ROUNDS):
            wait_until(lambda: is_whole(local))
            talks = [Talk(front_end, Ask(key, steps=1000 if key % 2 else 5)) for key in range(6)]
            for turn in range(3):
                if turn == 1:
                    os.kill(local.pid(next(victims)), signal.SIGKILL)
                for key, talk in enumerate(talks):
                    talk.read(most=chosen.randint(1, 9) if key % 2 else None)
                    talk.say(turn, is_cut=bool(key % 2))
            for talk in talks:
                talk.read()
                talk.check()
        assert len(local.deaths) == ROUNDS
    report(f"said, seed {SEED}: {ROUNDS} kills, {6 * ROUNDS} talks of 4 turns, half of them cut: all as eager")
