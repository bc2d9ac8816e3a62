"""What the control path costs: CPU time and context switches per request, token, hop, refusal and waiting stream.

A duration depends on the machine and on what else runs there; the CPU time of a process much
less. CPU time is also what an operator pays for: it says how many streams a machine can carry.

Workload: toy models that compute nothing (bench/models/timestamps.py, bench/models/relay.py), so that all CPU time is
the control path: 64 streams of 20 tokens/s, four times the reading speed of a chat; chats of one token, the smallest
request, on new connections; streams that wait in the queue; hops of 4 KB (a hidden state) and 1 MB (an image) between
two workers. SmolLM2-135M with its real weights at 16 streams shows the front end's cost of real text.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from bench.claims import Claim, Row, print_table
from bench.cost.usage import ROLES, Roles, Usage, scale, spending
from bench.http.client import ask, model_file, serve
from bench.runtime import MODELS_DIR, RELAY, deploy

STREAMS, WORDS, PERIOD_S = 64, 50, 0.05
REAL_STREAMS, REAL_TOKENS = 16, 20
CHATS, REFUSALS, WAITING, PAUSE_S = 200, 200, 500, 3.0
HOPS = {"hop of 4 KB": (512, 300), "hop of 1 MB": (131_072, 60)}
"""Numbers of 8 bytes, and rounds of two hops."""
ROUNDS = 3
TOY_TOKEN, REAL_TOKEN, CHAT = "token of 64 toy streams", "token of 16 SmolLM2 streams", "chat of one token"


@dataclass(frozen=True)
class Line:
    """Something that costs: the usage of each role for one of it, by round."""

    name: str
    rounds: Sequence[Roles]
    roles: tuple[str, ...] = ROLES

    def cpu_us(self, *roles: str) -> list[float]:
        """CPU time of these roles together, by round."""
        return [sum(used[role].cpu_us for role in roles if role in used) for used in self.rounds]

    def rows(self) -> list[Row]:
        """CPU time by role, and the context switches of all of them together."""
        totals = [sum((used[role] for role in self.roles if role in used), Usage()) for used in self.rounds]
        return [
            *(Row(f"{self.name}: {role}", "us", self.cpu_us(role)) for role in self.roles),
            Row(f"{self.name}: context switches", "times", [total.switches for total in totals]),
        ]


@dataclass(frozen=True)
class Budget:
    """A limit of the CPU time of some roles for one of something."""

    line: str
    roles: tuple[str, ...]
    max_us: float


BUDGETS = (
    Budget(TOY_TOKEN, ("front end",), 40.0),
    Budget(TOY_TOKEN, ("conductor",), 2.0),
    Budget(TOY_TOKEN, ("worker",), 30.0),
    Budget(REAL_TOKEN, ("front end",), 60.0),
    Budget(REAL_TOKEN, ("conductor",), 2.0),
    Budget(CHAT, ROLES, 900.0),
)


async def _tokens(port: int, pid: int, streams: int, text: str, **body: object) -> Roles:
    """The cost of a token while all streams speak."""
    clients = [await ask(port, text, **body) for _ in range(streams)]
    while not all(client.deltas for client in clients):
        await asyncio.sleep(0.01)
    before = sum(client.deltas for client in clients)
    with spending(pid) as spent:
        while not any(client.ended.done() for client in clients):
            await asyncio.sleep(0.02)
        tokens = sum(client.deltas for client in clients) - before
    for client in clients:
        await client.ended
    return scale(spent, 1 / tokens)


async def _requests(port: int, pid: int, count: int, status: int) -> Roles:
    """The cost of a request that is answered at once, one after another on new connections."""
    with spending(pid) as spent:
        for _ in range(count):
            client = await ask(port, "1 0", stream=False)
            await client.ended
            if client.status != status:
                raise RuntimeError(f"a request got the status {client.status} instead of {status}")
    return scale(spent, 1 / count)


async def _pause(pid: int) -> Roles:
    """What a server uses in a minute in which it is asked nothing."""
    with spending(pid) as spent:
        await asyncio.sleep(PAUSE_S)
    return scale(spent, 60 / PAUSE_S)


async def _busy_server(port: int, pid: int) -> list[Line]:
    await _requests(port, pid, 20, 200)  # the first ones make what is made once
    tokens, chats = list[Roles](), list[Roles]()
    for _ in range(ROUNDS):
        tokens.append(await _tokens(port, pid, STREAMS, f"{WORDS} {PERIOD_S}"))
        chats.append(await _requests(port, pid, CHATS, 200))
    return [Line(TOY_TOKEN, tokens), Line(CHAT, chats)]


async def _full_server(port: int, pid: int) -> list[Line]:
    """All streams but one wait in the queue, which is full."""
    clients = [await ask(port, "100000 0.1")]
    await asyncio.sleep(0.5)
    before = await _pause(pid)
    clients += [await ask(port, "1 0") for _ in range(WAITING)]
    await asyncio.sleep(1.0)
    waiting = await _pause(pid)
    each = scale({role: used - before[role] for role, used in waiting.items()}, 1 / WAITING)
    refusals = [await _requests(port, pid, REFUSALS, 429) for _ in range(ROUNDS)]
    for client in clients:
        client.transport.abort()
    return [Line("minute of a waiting stream", [each]), Line("refusal", refusals)]


async def _real_server(port: int, pid: int) -> list[Line]:
    text, body = "Count from one to ninety in words.", {"max_tokens": REAL_TOKENS}
    rounds = [await _tokens(port, pid, REAL_STREAMS, text, **body) for _ in range(ROUNDS)]
    return [Line(REAL_TOKEN, rounds, ("front end", "conductor"))]  # most of the worker's time is that of the network


def _hops() -> list[Line]:
    """The cost of a value that goes from one worker to another, with the front end in this process."""
    lines: list[Line] = []
    with deploy(MODELS_DIR / "relay.py", RELAY) as front_end:

        def run(size: int, rounds: int) -> Roles:
            with spending(os.getpid()) as spent:
                for _ in front_end.open_stream("model", {"walk": "race", "size": size, "rounds": rounds}):
                    pass
            return scale(spent, 1 / (2 * rounds))

        for name, (size, rounds) in HOPS.items():
            run(size, 10)
            lines.append(Line(name, [run(size, rounds) for _ in range(ROUNDS)], ("conductor", "worker")))
    return lines


def cost() -> Claim:
    """The ledger, and how many of its budgets are kept."""
    toy, full = model_file("timestamps"), ("--max-running-requests", "1", "--max-queued-requests", str(WAITING))
    lines: list[Line] = []
    with serve(toy) as (port, pid):
        lines += asyncio.run(_busy_server(port, pid))
    with serve(toy, *full) as (port, pid):
        lines += asyncio.run(_full_server(port, pid))
    lines += _hops()
    with serve("smollm2") as (port, pid):
        lines += asyncio.run(_real_server(port, pid))
    print_table([row for line in lines for row in line.rows()])
    by_name = {line.name: line for line in lines}
    measured = {budget: Row("", "us", by_name[budget.line].cpu_us(*budget.roles)).median for budget in BUDGETS}
    details = {
        f"{budget.line}: {' and '.join(budget.roles)}": f"{value:.1f} us of {budget.max_us:g}"
        for budget, value in measured.items()
    }
    kept = sum(value <= budget.max_us for budget, value in measured.items())
    claim = "share of the CPU budgets per token and per request that the control path keeps"
    return Claim(claim, round(kept / len(BUDGETS), 3), 1.0, is_met=kept == len(BUDGETS), details=details)
