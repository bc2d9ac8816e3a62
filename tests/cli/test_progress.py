"""What is seen of a start, and that nobody is let in before what only the first request takes is done."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from mstar.cli.progress import Bars, Lines, Logged, Stage
from mstar.cli.serve import Server
from mstar.launch.together import Together
from mstar.plan.deployment import deploy
from mstar.server import logs
from mstar.server.door import Door
from mstar.server.live import FrontEnd
from mstar.wire.messages import Peer

WARM = """
from collections.abc import Iterator
from mstar import Component, Model, Text, loop, op, walk

class Part(Component):
    @op
    def letter(self, text: str, step: int) -> str:
        if text == "bad":
            raise RuntimeError("no such word")
        self.said.append(text[step])
        return text[step]

class Warm(Model):
    def __init__(self) -> None:
        self.part = Part()
        self.part.said = []

    @walk
    def say(self, text: str, steps: int) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.part.letter(text, step))

    def warm_ups(self):
        return [{"text": "ab", "steps": 2}, {"text": "bad", "steps": 1}, {"text": "c", "steps": 1}]
"""
STAGES = [
    {"conductor": Stage("", 0, 1), "w": Stage("", 0, 3)},
    {"conductor": Stage("up", 1, 1), "w": Stage("loading m.a (1 of 2)", 0, 3)},
    {"conductor": Stage("up", 1, 1), "w": Stage("loading m.b (2 of 2)", 1, 3)},
    {"conductor": Stage("up", 1, 1), "w": Stage("up", 3, 3)},
]


def test_lines_say_each_thing_once(capsys):
    lines = Lines()
    for stages in [*STAGES, STAGES[-1]]:
        lines.show(stages)
    assert capsys.readouterr().out.splitlines() == [
        "[1/2] conductor is up",
        "[1/2] w: loading m.a (1 of 2)",
        "[1/2] w: loading m.b (2 of 2)",
        "[2/2] w is up",
    ]


def test_log_lines_say_the_same(capsys):
    with logs.writing("json"):
        shown = Logged()
        for stages in STAGES:
            shown.show(stages)
        shown.say("ready")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [one["event"] for one in told][-2:] == ["[2/2] w is up", "ready"]
    assert told[0]["part"] == "conductor"


def test_bars_show_how_far_each_is(capsys):
    bars = Bars()
    for stages in STAGES[:3]:
        bars.show(stages)
    bars.say("ready")
    bars.close()
    told = capsys.readouterr().out
    assert re.search(r"conductor .* up", told)
    assert re.search(r"w .* loading m.b \(2 of 2\)", told)
    assert "ready" in told


def test_warm_ups_are_served_before_anybody_comes(tmp_path, capsys, caplog):
    (tmp_path / "warm.py").write_text(WARM)
    deployed = deploy({"warm": str(tmp_path / "warm.py")}, {})
    model = deployed["warm"].model
    door, shown = Door({"warm": model}), Lines()
    with Together(deployed) as together:
        front = FrontEnd(together.node, Peer("front", 0), together.conductors)
        together.add(front)
        Server(door, deployed, shown)._warm_up(front)
        assert not any(front.take_stock(together.conductor).result(1.0)[what] for what in ("requests", "queue"))
    assert model.part.said == ["a", "b", "c"]
    assert (door.phase.name, door.phase.done, door.phase.total) == ("warming up", 3, 4)
    assert "the warm-up of warm with a dict failed: RuntimeError" in caplog.text  # and the others were served
    assert capsys.readouterr().out.splitlines()[-1] == "[1/1] warm-up is done"


@pytest.mark.slow
def test_what_a_worker_loads_is_told_on_the_way(tmp_path):
    slow = "    def prepare(self) -> None:\n        import time\n\n        time.sleep(1.0)\n\n    @op"
    (tmp_path / "slow.py").write_text(WARM.replace("    @op", slow, 1).replace('{"text": "bad", "steps": 1}, ', ""))
    command = [sys.executable, "-m", "mstar.cli", "serve", str(tmp_path / "slow.py"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[-1]
        lines = iter(process.stdout.readline, "")
        seen = next(line for line in lines if "loading" in line)
        assert seen.endswith("] local: loading slow.part (1 of 1)\n")
        answer = httpx2.get(f"{url}/ready")
        assert answer.status_code == 503
        assert (answer.json()["phase"], answer.json()["total"]) == ("starting", 3)
        assert next(line for line in lines if line.startswith("[2/2]")) in (
            "[2/2] local is up\n",
            "[2/2] conductor is up\n",
        )
        assert [next(lines) for _ in range(3)] == [
            "[2/3] warm-up: dict for slow\n",
            "[2/3] warm-up: dict for slow\n",
            "[3/3] warm-up is done\n",
        ]
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_terminal_shows_bars():
    noop = Path(__file__).parents[2] / "examples" / "noop.py"
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "mstar.cli", "serve", str(noop), "--port", "0"]
    process = subprocess.Popen(command, stdout=child, stderr=child)
    os.close(child)
    try:
        told, deadline = "", time.monotonic() + 30
        while "ready" not in told and time.monotonic() < deadline:
            told += os.read(parent, 4096).decode()
        assert "━━━" in told
        assert re.search(r"noop: generate\s+open to everybody who can reach it", told)
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)
