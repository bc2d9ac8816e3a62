"""Function calls of the control path per streamed token and per chat, by role: a cost that no machine changes.

One thread runs the three processes of a server in turn: the front end with its HTTP protocol, a conductor and a worker,
each with its own actor loop, codec and Unix sockets. A profile function counts the calls of Python and C functions of
the process that has the turn. Three things are replaced, so that two runs count the same:

- The clock: it advances while the op of the model runs, by `OP_S`. Ticks, heartbeats and acknowledgements are due in
  that time.
- The TCP connection of the client, by a transport in memory.
- The event loop of the front end, by asyncio's own, whose calls are not counted: uvloop has none.

    python -m tests.integration.budgets.call_counter             # count
    python -m tests.integration.budgets.call_counter --update    # write the counts to call_budgets.toml
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mstar import Component, Int64, Model, Tensor, Text, loop, op, rows, stacked, walk
from mstar.requests import ChatRequest, Finish

BUDGETS = Path(__file__).with_name("call_budgets.toml")
STREAMS, FIRST_TOKENS, TOKENS = 16, 8, 48
"""Concurrent streams, tokens of each before the count begins, and tokens of each that are counted."""
WARM_UP_CHATS, CHATS = 5, 20
OP_S = 0.02
"""Duration of the op, in seconds of the clock."""
MAX_GROWTH = 1.15
"""Calls that are allowed, relative to the budget."""
ROLES = ("frontend", "conductor", "worker")
_UNCOUNTED = (
    __file__,
    *(f"asyncio/{name}.py" for name in ("base_events", "events", "selector_events")),
    "selectors.py",
)


# ---------------------------------------------------------------- clock and model
class Clock:
    """Seconds that pass only while the op runs."""

    now_s = 1000.0

    @classmethod
    def read(cls) -> float:
        return cls.now_s


class Letters(Component):
    @op(batch=stacked)
    def letter(self, step: int) -> Int64[Tensor, "1"]:
        Clock.now_s += OP_S
        letters: Any = np.array([[65 + number % 26] for number in rows(step)], np.int64)
        return letters


class Alphabet(Model):
    """Chat model that emits as many letters as the last message says, one token each."""

    def __init__(self) -> None:
        self.letters = Letters()

    @walk
    def say(self, steps: int) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.letters.letter(step))

    async def route(self, request: ChatRequest) -> Finish:
        await self.say(int(str(request.messages[-1].parts[0])))
        return Finish("stop", {"text": 1})

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return bytes(tokens).decode()


# ---------------------------------------------------------------- processes
class CallCounter:
    """Counts calls while a process has the turn."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._role = ""
        self._is_counted: dict[Any, bool] = {Clock.read.__code__: True}  # time.monotonic is a function too

    def run(self, role: str, function: Callable[[], Any]) -> None:
        """Count the calls of a function."""
        self._role = role
        sys.setprofile(self._on_event)
        try:
            function()
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: Any, kind: str, _argument: Any) -> None:
        if kind in ("call", "c_call"):
            code = frame.f_code  # of the function that is called, or that calls a C function
            if code not in self._is_counted:
                self._is_counted[code] = not code.co_filename.endswith(_UNCOUNTED)
            self.calls[self._role] += self._is_counted[code]


class NonblockingPoll:
    """An epoll that does not wait."""

    def __init__(self, epoll: Any) -> None:
        self._epoll = epoll

    def poll(self, timeout_s: float = 0.0) -> list[tuple[int, int]]:
        return self._epoll.poll(0)


class NonblockingSelector(selectors.EpollSelector):
    """A selector that does not wait."""

    def select(self, timeout: float | None = None) -> Any:
        return super().select(0)


class MemoryTransport(asyncio.Transport):
    """Connection of a client that reads everything at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.data = bytearray()
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def pause_reading(self) -> None:
        """Nothing: the request is complete."""

    def resume_reading(self) -> None:
        """Nothing: the request is complete."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing: it is always writable."""

    @property
    def tokens(self) -> int:
        """Tokens of a streamed response so far."""
        return self.data.count(b'"content":"') - self.data.count(b'"content":""')


class Deployment:
    """A server of `Alphabet` whose processes take turns in one thread."""

    def __init__(self, directory: Path) -> None:
        from mstar.conductor.actor import ConductorActor
        from mstar.conductor.core import ConductorCore
        from mstar.conductor.limits import ConductorLimits
        from mstar.conductor.model import ConductorModel
        from mstar.engine.engine import Engine
        from mstar.frontend.actor import FrontendActor
        from mstar.launch.in_process import LAUNCHER, _LauncherActor
        from mstar.plan.compile import plan
        from mstar.plan.planned_model import PlannedModel
        from mstar.wire.messages import Peer
        from mstar.worker.actor import WorkerActor
        from mstar.worker.core import WorkerCore
        from mstar.worker.engine_thread import EngineThread
        from mstar.worker.scheduling.scheduler import BatchLimits

        class SteppedEngine(EngineThread):
            """Without a thread of its own: `_step_engine` executes its commands."""

            def start(self) -> None:
                """Start nothing."""

        model = Alphabet()
        plans = plan(model.graphs())
        planned = PlannedModel(model, plans)
        self.counter = CallCounter()
        self._loops = {role: self._make_loop(directory, is_frontend=role == "frontend") for role in ROLES}
        frontend_loop, conductor_loop, worker_loop = self._loops.values()
        conductor, frontend, worker = Peer("conductor", 0), Peer("front", 0), Peer(next(iter(plans.workers)), 0)
        frontend_loop.add(_LauncherActor(threading.Event(), threading.Event()))
        limits = ConductorLimits(max_running_requests=64, max_queued_requests=64, has_fixed_workers=True)
        models = {"alphabet": ConductorModel.from_plans(model, plans)}
        conductor_loop.add(ConductorActor(conductor_loop, ConductorCore(conductor, LAUNCHER, models, limits), dict))
        core = WorkerCore(worker, conductor, {"alphabet": plans}, ("alphabet.letters",), BatchLimits(64, 32))
        actor = WorkerActor(worker_loop, core, dict)
        worker_loop.add(actor)
        self._engine = SteppedEngine({"alphabet": planned.model}, Engine(), actor.report, threading.Lock())
        actor.attach_engine(self._engine, LAUNCHER)
        self.frontend = FrontendActor(frontend_loop, frontend, {"alphabet": conductor})
        frontend_loop.add(self.frontend)
        self._event_loop = asyncio.SelectorEventLoop(NonblockingSelector())
        self._start_http(model, plans)
        self.settle()

    def _make_loop(self, directory: Path, *, is_frontend: bool) -> Any:
        from mstar.transfer.codec import ArenaCodec
        from mstar.wire.transport.actor_loop import ActorLoop
        from mstar.wire.transport.address_book import AddressBook

        made = ActorLoop(AddressBook(directory), bytes(32), ArenaCodec(numpy_only=is_frontend))
        made._epoll = NonblockingPoll(made._epoll)  # type: ignore[assignment]
        return made

    def _start_http(self, model: Model, plans: Any) -> None:
        from mstar.server.app import build_app
        from mstar.server.http_server import HttpServer
        from mstar.server.state import ServerState

        state = ServerState({"alphabet": model})
        state.plans = {"alphabet": plans}
        state.start_accepting(self.frontend, tuple, self._event_loop)
        self._http_server = HttpServer(state, build_app(state, ()), 1)
        self._http_server.config.load()

    # ---------------------------------------------------------------- turns
    def settle(self) -> None:
        """Give turns until no process has anything to do at this moment."""
        while sum(self._turn(role) for role in ROLES):  # every process in each round
            pass

    def _turn(self, role: str) -> bool:
        """Give a process a turn, if it has something to do."""
        actor_loop, is_busy = self._loops[role], False
        if self._is_due(actor_loop):
            is_busy = True
            self.counter.run(role, actor_loop._run_once)
        event_loop: Any = self._event_loop
        timers = event_loop._scheduled
        if role == "frontend" and (event_loop._ready or (timers and timers[0].when() <= Clock.now_s)):
            is_busy = True
            event_loop.call_soon(event_loop.stop)
            self.counter.run(role, event_loop.run_forever)
        return is_busy

    def _is_due(self, actor_loop: Any) -> bool:
        due_at = min(actor_loop._next_tick, actor_loop._channels.due(until=actor_loop._next_tick))
        has_events = bool(actor_loop._inbox or actor_loop._callbacks or actor_loop._epoll.poll())
        return has_events or Clock.now_s >= due_at

    def step_engine(self) -> None:
        """Execute the next commands of the engine, or let time pass, and settle."""
        if self._engine._commands.empty():
            Clock.now_s += OP_S
        else:
            self._engine._executed += 1
            self.counter.run("worker", self._engine._execute_next)
        self.settle()

    def post_chat(self, tokens: int, *, stream: bool) -> MemoryTransport:
        """Send a chat request on a new connection."""
        message = {"role": "user", "content": str(tokens)}
        body = json.dumps({"model": "alphabet", "messages": [message], "stream": stream}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        request = f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body
        transport, config = MemoryTransport(), self._http_server.config
        make_protocol: Any = config.http_protocol_class

        def connect() -> None:
            protocol = make_protocol(config=config, server_state=self._http_server.server_state, app_state={})
            protocol.connection_made(transport)
            protocol.data_received(request)

        self._event_loop.call_soon(connect)
        self.settle()
        return transport

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Execute commands of the engine until a condition holds."""
        for _ in range(1000):
            if condition():
                return
            self.step_engine()
        raise RuntimeError("the requests do not make progress")


# ---------------------------------------------------------------- counts
def count_calls() -> dict[str, dict[str, float]]:
    """Calls of each role for one token of several streams, and for one chat of one token."""
    from mstar.server.telemetry.logs import logging_in_child

    with tempfile.TemporaryDirectory() as directory, logging_in_child("text", ""):
        deployment = Deployment(Path(directory))
        calls = deployment.counter.calls

        def chat() -> None:
            transport = deployment.post_chat(1, stream=False)
            deployment.run_until(transport.is_closing)
            if not transport.data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(transport.data.decode())

        for _ in range(WARM_UP_CHATS):
            chat()
        gc.disable()  # finalizers are calls too
        calls.clear()
        for _ in range(CHATS):
            chat()
        per_chat = {role: calls[role] / CHATS for role in ROLES}

        total = FIRST_TOKENS + TOKENS + FIRST_TOKENS
        streams = [deployment.post_chat(total, stream=True) for _ in range(STREAMS)]
        deployment.run_until(lambda: min(stream.tokens for stream in streams) >= FIRST_TOKENS)
        before = sum(stream.tokens for stream in streams)
        calls.clear()
        deployment.run_until(lambda: min(stream.tokens for stream in streams) >= FIRST_TOKENS + TOKENS)
        tokens = sum(stream.tokens for stream in streams) - before
        per_token = {role: calls[role] / tokens for role in ROLES}
        gc.enable()
        deployment.run_until(lambda: all(stream.is_closing() for stream in streams))
    return {"token": per_token, "chat": per_chat}


def measure() -> dict[str, dict[str, float]]:
    """The counts of a new process. The order of its sets is fixed."""
    command = [sys.executable, "-m", "tests.integration.budgets.call_counter"]
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": f"{root}:{root / 'src'}"}
    finished = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise RuntimeError(finished.stderr)
    return json.loads(finished.stdout)


def exceeded_budgets(counts: dict[str, dict[str, float]], budgets: dict[str, Any]) -> list[str]:
    """What costs more than its budget allows, one line each."""
    return [
        f"{name}, {role}: {count:.1f} calls are {count / budgets[name][role] - 1:.0%} more than {budgets[name][role]}"
        for name, roles in counts.items()
        for role, count in roles.items()
        if count > budgets[name][role] * MAX_GROWTH
    ]


def _update() -> None:
    lines = [
        "# Function calls for one streamed token of 16 streams and for one chat of one token.",
        "# Written by `python -m tests.integration.budgets.call_counter --update`.",
        f'python = "{sys.version_info.major}.{sys.version_info.minor}"',
    ]
    for name, roles in measure().items():
        lines += ["", f"[{name}]", *(f"{role} = {count:.2f}" for role, count in roles.items())]
    BUDGETS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if "--update" in sys.argv:
        _update()
    else:
        time.monotonic = time.perf_counter = time.time = Clock.read
        sys.stdout.write(json.dumps(count_calls()))
