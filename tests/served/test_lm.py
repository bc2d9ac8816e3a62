"""A language model in real processes: caches move between workers, pages are short, every token is the right one."""

import random
from pathlib import Path

import pytest

from mstar.launch.local import Local
from mstar.nn.sampling import Sampling
from mstar.walk.load import load_model
from tests.chaos.parts import peers, stocks
from tests.served.parts import Client, Oracle, crowd, front, module_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FILE = Path(__file__).with_name("lm.py")
APART = '[walks.read]\nlm = "reads"\n[walks.write]\nlm = ["a", "b"]'
AT_ONCE_S = 0.5


def asked(name, count, longest, tokens):
    """A model of the file and requests for it, and what is right: greedy ones and ones that draw by their seed."""
    model, chosen = load_model(f"{FILE}:{name}"), random.Random(name)
    writing = module_of(model).Writing
    wishes = [
        Sampling(max_tokens=tokens, temperature=seed % 2, top_k=20 * (seed % 3), seed=seed) for seed in range(count)
    ]
    prompts = [[chosen.randrange(6, 97) for _ in range(chosen.randint(1, longest))] for _ in wishes]
    return Oracle(model, [writing(*request) for request in zip(prompts, wishes, strict=True)])


def pages(local, front_end):
    found = stocks(front_end, peers(local))
    return [n for what, n in found.items() if what.endswith("lm.pages_used")]


def test_reading_and_writing_on_different_workers():
    oracle = asked("Tiny", 32, longest=60, tokens=24)
    with Local({"lm": f"{FILE}:Tiny"}, {"lm": APART}, spare=False) as local:
        front_end = front(local)
        crowd(front_end, "lm", oracle, 32)
        crowd(front_end, "lm", oracle, 32)
        assert pages(local, front_end) == [0, 0, 0]


def test_twice_as_many_pages_are_wanted_as_there_are(report):
    oracle = asked("Tight", 32, longest=25, tokens=24)
    writing = type(oracle.requests[0])
    wanted = sum(-(-(len(each.prompt) + 24) // 16) for each in oracle.requests)
    with Local({"lm": f"{FILE}:Tight"}, spare=False) as local:
        front_end = front(local)
        clients = crowd(front_end, "lm", oracle, 32, patience=60)
        took = max(client.seconds for client in clients)
        huge = Client(front_end, "lm", writing([7] * 400, Sampling(max_tokens=4))).wait()
        report(f"pages: 24 for {wanted}, all served in {took:.1f} s; too large: told in {1000 * huge.seconds:.0f} ms")
        assert wanted >= 2 * 24
        assert (huge.end.status, huge.end.error) == ("failed", "NeverFits")
        assert "26 pages of 16 are needed, and there are 24" in huge.end.text
        assert huge.seconds <= AT_ONCE_S
        assert pages(local, front_end) == [0]


@pytest.mark.nightly
def test_the_shape_of_a_real_one():
    oracle = asked("Real", 3, longest=20, tokens=4)
    with Local(
        {"lm": f"{FILE}:Real"}, {"lm": '[walks.read]\nlm = "reads"\n[walks.write]\nlm = "writes"'}, spare=False
    ) as local:
        crowd(front(local), "lm", oracle, 3, patience=120)
