"""`mstar prove` passes a right port, and refutes wrong ones with a message that names the cause."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from mstar.cli.main import main
from mstar.cli.prove.proof import Proof
from mstar.cli.prove.subject import Subject

RIGHT = Path(__file__).parent / "right_model.py"
LOCAL_STAGES = 6
"""Number of stages in this process."""


@dataclass(frozen=True)
class Planted:
    """A bug: text of the right port, what replaces it, the stage that fails, and what its result says."""

    name: str
    right: str
    wrong: str
    stage: str
    says: str


BATCHED = "return np.stack([np.sin(np.arange(20) * (1 + row.mean())).astype(np.float32) for row in tokens])"
NEXT = "results.append([int((logits + noise(own_seed, len(own.keys))).argmax())])"
PLANTED = [
    Planted(
        "no rotary embedding of keys",
        'rotate(x @ self.w["key"], position)',
        'x @ self.w["key"]',
        "reference",
        "op by op",
    ),
    Planted("no scale of scores", " / np.sqrt(SIZE)", "", "reference", "not that of the library"),
    Planted(
        "wrong rotary base",
        "angles = position / 50 **",
        "angles = position / 5 **",
        "reference",
        "not that of the library",
    ),
    Planted(
        "one token too few",
        "request.length, request.seed)",
        "request.length - 1, request.seed)",
        "reference",
        "the library gives",
    ),
    Planted("the last window is lost", ", flush=True", "", "reference", "the library gives"),
    Planted(
        "unseeded random numbers",
        "np.random.default_rng([seed, position])",
        "np.random.default_rng()",
        "repeats",
        "from the request",
    ),
    Planted(
        "the clock",
        NEXT,
        "results.append([(int(logits.argmax()) + __import__('time').time_ns() // 1000) % VOCAB])",
        "repeats",
        "read no clock",
    ),
    Planted(
        "state kept in the component",
        "results = []",
        "self.seen = getattr(self, 'seen', 0) + 1\n        results = []",
        "repeats",
        "in a State",
    ),
    Planted(
        "the first request decides",
        "own.values.append(x",
        "self.first = getattr(self, 'first', own_seed + 1)\n                own.values.append(self.first * x",
        "repeats",
        "second instance",
    ),
    Planted(
        "weights that are not seeded",
        'self.w = weights()\n\n    @op(batch=ragged("T")',
        'self.w = weights()\n        self.w["value"] *= np.random.random()\n\n    @op(batch=ragged("T")',
        "repeats",
        "seed all weights",
    ),
    Planted(
        "rows are mixed",
        BATCHED,
        BATCHED.replace("row.mean()", "tokens.mean()"),
        "batches",
        "computed from its own row",
    ),
    Planted(
        "results in another order",
        BATCHED,
        BATCHED.replace("in tokens", "in tokens[::-1]"),
        "batches",
        "the order of the results",
    ),
    Planted("padding is read", "[row[:length]].mean(0)", "[row].mean(0)", "batches", "padding that is not masked"),
    Planted(
        "an op that takes one row only",
        "results = []",
        "assert layout.rows == 1\n        results = []",
        "batches",
        "AssertionError",
    ),
    Planted(
        "positions restart in each chunk",
        "logits = np.zeros(VOCAB)\n            for token",
        "logits, begun = np.zeros(VOCAB), len(own.keys) * (length > 1)\n            for token",
        "batches",
        "in chunks of",
    ),
    Planted(
        "states are kept",
        "results = []",
        "self.all = [*getattr(self, 'all', ()), *rows(memory)]\n        results = []",
        "states",
        "Memory",
    ),
]
SERVED = [
    Planted(
        "an incomplete export",
        "class Memory(State):",
        "class Memory(State):\n    def export(self):\n        return {'keys': self.keys, 'values': self.keys}\n",
        "placements",
        "a worker per walk",
    ),
    Planted(
        "a global between components",
        "return np.stack(means)",
        "global LAST\n        LAST = means[-1]\n        return np.stack(means)",
        "placements",
        "NoneType.*a worker per component",
    ),
    Planted(
        "a value that cannot be sent",
        "self.values: list[Any] = []",
        "self.values: list[Any] = []\n        self.turn = lambda x: x",
        "placements",
        "to another process",
    ),
    Planted(
        "weights of this process",
        'random = np.random.default_rng(7)\n    shapes = {"embedding": (VOCAB',
        'random = np.random.default_rng(__import__("os").getpid())\n    shapes = {"embedding": (VOCAB',
        "placements",
        "same in every process",
    ),
]


def plant(bug, folder):
    text = RIGHT.read_text()
    assert text.count(bug.right) == 1, bug.name
    text = text.replace(bug.right, bug.wrong)
    if bug.stage == "placements":
        text = text.replace("def reference(", "def not_compared(")
    if "LAST" in bug.wrong:
        text = text.replace(
            "x + attended + own_summary",
            "x + attended + (own_summary if LAST is None else LAST * 0 + own_summary) + 0 * LAST",
        )
        text = text.replace("class Memory", "LAST: Any = None\n\n\nclass Memory")
    if "self.seen" in bug.wrong:
        text = text.replace("noise(own_seed, len(own.keys))", "noise(own_seed, self.seen)")
    if "begun" in bug.wrong:
        text = text.replace("position = len(own.keys)", "position = len(own.keys) - begun")
    path = folder / "wrong_model.py"
    path.write_text(text)
    return path


def prove_locally(path):
    stages = Proof(Subject(str(path)), schedules=6).run()
    return [next(stages) for _ in range(LOCAL_STAGES)]


def test_a_right_port_passes_all_stages_in_this_process():
    results = prove_locally(RIGHT)
    assert [(result.name, result.state) for result in results] == [
        (name, "ok") for name in ("walks", "repeats", "reference", "schedules", "batches", "states")
    ]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_wrong_port_is_refuted(bug, tmp_path):
    failed = [result for result in prove_locally(plant(bug, tmp_path)) if result.state == "failed"]
    first = next(result for result in failed if result.name == bug.stage)
    assert re.search(bug.says, f"{first.detail} {first.fix}"), first
    assert first.fix


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_right_port_is_proven_and_has_a_card(tmp_path, capsys):
    assert main(["prove", str(RIGHT), "--schedules", "3", "--card", str(tmp_path / "card.md"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["proven"]
    assert [stage["name"] for stage in report["stages"]][LOCAL_STAGES:] == [
        "placements",
        "crashes",
        "disconnects",
        "speed",
    ]
    card = (tmp_path / "card.md").read_text()
    assert "# SpeechModel" in card
    assert "| crashes | ok |" in card
    assert "requests per second" in card


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", SERVED, ids=lambda bug: bug.name)
def test_a_port_that_is_wrong_in_several_processes_is_refuted(bug, tmp_path, capsys):
    path = plant(bug, tmp_path)
    assert main(["prove", str(path), "--schedules", "2"]) == 1
    printed = capsys.readouterr()
    (line,) = re.findall(rf"^{bug.stage} +failed.*\n  fix: .*", printed.out, re.MULTILINE)
    assert re.search(bug.says, line, re.DOTALL), line
    assert "is not proven" in printed.err


def test_a_failure_skips_the_stages_in_processes(tmp_path, capsys):
    path = plant(PLANTED[0], tmp_path)
    assert main(["prove", str(path), "--schedules", "1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    states = {stage["name"]: stage["state"] for stage in report["stages"]}
    assert states["reference"] == "failed"
    assert states["placements"] == states["speed"] == "skipped"


def test_a_model_without_requests_says_how_to_add_them(tmp_path, capsys):
    path = tmp_path / "silent.py"
    path.write_text(RIGHT.read_text().replace("def requests()", "def others()"))
    assert main(["prove", str(path)]) == 1
    assert "define `requests()` beside the model" in capsys.readouterr().err
