"""Another engine as a process in its own venv, which stays loaded and takes turns with what else is measured.

It does nothing between turns. It is not an HTTP server: prompts and tokens go over a pipe, so that engines are
compared and not their servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from bench.peers.model import RunResult

LOAD_TIMEOUT_S = 900
TURN_TIMEOUT_S = 600
END_TIMEOUT_S = 20


class EngineProcess:
    """An engine with one model loaded. Use it in a `with`: the process ends with the block, however that ends.

    The first line that the command prints says that it is ready. After that it answers {"prompts": [[ids]], "new": n}
    by {"seconds": s, "outputs": [[ids]]}, one line each, until its input ends.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._name, self._command, self._environment = name, list(command), dict(environment)

    def __enter__(self) -> EngineProcess:
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
            text=True,
            process_group=0,  # so that its child processes end with it
        )
        try:
            self._answer(LOAD_TIMEOUT_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, prompts: list[list[int]], new: int) -> RunResult:
        """Give it all prompts at once; greedy, `new` tokens for each."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either, which is reported
            print(json.dumps({"prompts": prompts, "new": new}), file=self._process.stdin, flush=True)
        return RunResult(**self._answer(TURN_TIMEOUT_S))

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if readable else ""
        if line:
            return json.loads(line)
        self._log.seek(0)
        inputs = "\n    ".join(self._log.read().splitlines()[-30:])
        what = "ended" if readable else f"did not answer for {timeout_s} s"
        raise RuntimeError(f"{self._name} {what}. The last it said:\n    {inputs}\n  fix: what its message asks for")

    def _end(self) -> None:
        """Close its input, upon which it ends by itself; kill whatever is left of its group."""
        try:
            self._process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f"{self._name} did not end within {END_TIMEOUT_S} s and is killed")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
