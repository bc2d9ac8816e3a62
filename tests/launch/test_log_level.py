"""`--log-level` applies to the child processes of a server too."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import ci_cases

ROOT = Path(__file__).parents[2]
LEVELS = ["debug", "info", "warning", "error"]
MODEL = """
import logging
from collections.abc import Iterator

from mstar import Component, Latents, Model, op, walk


class Part(Component):
    def prepare(self) -> None:
        log = logging.getLogger("mstar.toy")
        for level in ("debug", "info", "warning", "error"):
            getattr(log, level)("prepared at level %s", level)

    @op
    def same(self, x: int) -> int:
        return x


class Toy(Model):
    def __init__(self) -> None:
        self.part = Part()

    @walk
    def go(self, x: int) -> Iterator[Latents]:
        yield Latents(self.part.same(x))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", ci_cases(LEVELS, "debug"))
def test_a_worker_process_logs_from_this_level(level, tmp_path):
    (tmp_path / "toy.py").write_text(MODEL)
    command = [sys.executable, "-m", "mstar.cli", "serve", str(tmp_path / "toy.py"), "--port", "0"]
    with subprocess.Popen(
        [*command, "--log-level", level], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as process:
        try:
            lines = []
            while (line := process.stdout.readline()) and line != "ready\n":
                lines.append(line)
            assert line == "ready\n", "".join(lines)
            process.terminate()
            output = "".join(lines) + process.stdout.read()
        finally:
            process.kill()
    expected = LEVELS[LEVELS.index(level) :]
    assert [each for each in LEVELS if f"prepared at level {each}" in output] == expected
