"""Clients that behave badly in numbers: a storm of disconnects, and one that takes nothing."""

import random
import time

import pytest

from mstar.config import Options
from mstar.launch.local import Local
from tests.chaos.parts import MIX, TRAPS, TRAPS_FILE, Ask, Round, launched, oracles, peers, settle, stocks, wait_until
from tests.served.parts import Client, Oracle, front

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
STORM, STAYING, LASTS_S = 500, 50, 3.0
WINDOW = 32


def lasting(front_end, local):
    """What does not come and go with requests: open files and threads of every process, and the processes."""
    found = {what: n for what, n in stocks(front_end, peers(local)).items() if what.endswith((".fds", ".threads"))}
    return found | {"launcher.fds": local.stock()["fds"]} | local.stock()["processes"]


def test_a_storm_of_disconnects_leaves_nothing(report):
    chosen, known = random.Random(6), oracles()
    with launched(options=Options(queue_bound=STORM), spare=False) as (local, front_end):
        for _ in range(2):
            Round(front_end, known).check()
        settle(front_end, peers(local))
        before = lasting(front_end, local)
        asked = [MIX[number % len(MIX)] for number in range(STORM)]
        start = time.monotonic()
        clients = [Client(front_end, name, known[name].requests[number], patience=90) for name, number in asked]
        staying = set(chosen.sample(range(STORM), STAYING))
        leaving = sorted((chosen.random() * LASTS_S, number) for number in range(STORM) if number not in staying)
        for moment, number in leaving:
            time.sleep(max(0.0, start + moment - time.monotonic()))
            clients[number].close()
        cut = sum(clients[number].end is None for _, number in leaving)
        for number in staying:
            name, which = asked[number]
            known[name].judge(clients[number].wait(60), which)
        took = settle(front_end, peers(local))
        assert lasting(front_end, local) == before
        assert not local.deaths
    report(f"storm: {cut} of {STORM} streams cut, {STAYING} served; nothing left after {took:.2f} s")


def test_who_takes_nothing_holds_nobody_up(report):
    oracle = Oracle(TRAPS, [Ask(key, steps=60) for key in range(8)])
    patient = Oracle(TRAPS, [Ask(99, steps=400)])
    with Local({"traps": TRAPS_FILE}, options=Options(window=WINDOW), spare=False) as local:
        front_end = front(local)

        def serve():
            clients = [Client(front_end, "traps", ask) for ask in oracle.requests]
            for number, client in enumerate(clients):
                oracle.judge(client.wait(), number)
            return max(client.seconds for client in clients)

        alone = min(serve() for _ in range(3))
        idle = Client(front_end, "traps", patient.requests[0], is_idle=True)
        wait_until(lambda: idle.got.get("Text", 0) >= WINDOW)
        beside = min(serve() for _ in range(3))
        behind = idle.got["Text"]
        report(f"slow client: others take {beside:.2f} s beside it, {alone:.2f} s without; it is {behind} behind")
        assert behind == WINDOW
        assert idle.end is None
        assert beside < 2 * alone
        idle.wake()
        patient.judge(idle.wait(), 0)
        settle(front_end, peers(local))
