"""The composite model behind mstar and behind general model servers: the same requests, in turns, on the same cores.

Requests are ragged: each has its own number of frames and wants its own length of sound. Every answer is compared with
what another server gave for the same request. How a server is set up is told in `bench.peers.servers`.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.claims import Row, print_table
from bench.http.client import percentile
from bench.peers.clients import LoadResult, Response, closed_loop, open_loop, post
from bench.peers.peer_servers import PEERS, ServerStartError, mstar_peer, run_server
from bench.peers.traffic import HOP, RATE, SpeechRequest, decode_numbers, encode_array, make_requests
from bench.peers.venvs import FOLDER, find_prepared

OURS = "mstar"
MSTAR = mstar_peer(OURS, "pipeline_model", "/v1/generate", threads=1)
CLOSED_LOOP_CLIENTS = {1: 4, 8: 16, 16: 48}
"""Number of requests by number of clients."""
OPEN_LOOP, OPEN_COUNT, OPEN_SHARE = 0, 20, 0.7
"""Requests at random times, by a share of what the slowest server that batches can do."""
ROUNDS = 3
TOLERANCE = 1e-5
"""How far two samples may be apart. One other token makes a difference a hundred times as large."""
EVENT = re.compile(rb"data: (\{.*\})")


# ---------------------------------------------------------------- how each is asked
@dataclass(frozen=True)
class Server:
    """One that runs: where it is, what it is sent for a request, and the sound in its answer."""

    port: int
    path: str
    body: Callable[[SpeechRequest], Mapping[str, Any]]
    sound: Callable[[bytes], Any]
    batches: bool = True


def peer_body(request: SpeechRequest) -> Mapping[str, Any]:
    """A request for a general model server."""
    return {"frames": encode_array(request.frames), "tokens": request.tokens}


def peer_audio(content: bytes) -> Any:
    """What one answered."""
    return decode_numbers(json.loads(content)["sound"])


def mstar_body(request: SpeechRequest) -> Mapping[str, Any]:
    """A request for mstar's surface for any model."""
    frames = {"dtype": "float32", "shape": request.frames.shape, "data": encode_array(request.frames)}
    return {"model": "model", "request": {"frames": frames, "tokens": request.tokens}}


def mstar_audio(content: bytes) -> Any:
    """The events of its answer, put together."""
    events = [json.loads(one) for one in EVENT.findall(content)]
    return np.concatenate([decode_numbers(one["value"]["data"]) for one in events if one.get("kind") == "Audio"])


@contextmanager
def servers(folder: Path = FOLDER) -> Generator[tuple[dict[str, Server], dict[str, str]]]:
    """All that can be started, by name, and why the others cannot."""
    there, absent = dict[str, Server](), dict[str, str]()
    (params,) = make_requests(1)
    ours, theirs = (json.dumps(body(params)).encode() for body in (mstar_body, peer_body))
    with ExitStack() as stack:
        for peer in reversed(PEERS):  # Ray first: it gives up on a busy machine
            if (python := find_prepared(folder / peer.venv, peer.needs)) is None:
                absent[peer.title] = f"not installed: python -m bench.peers.install {peer.venv}"
                continue
            try:
                port = stack.enter_context(run_server(peer, python, theirs))
            except ServerStartError as error:
                absent[peer.title] = str(error)
            else:
                there[peer.title] = Server(port, peer.path, peer_body, peer_audio, peer.batches)
        port = stack.enter_context(run_server(MSTAR, Path(sys.executable), ours))
        there[OURS] = Server(port, MSTAR.path, mstar_body, mstar_audio)
        yield there, absent


# ---------------------------------------------------------------- the race
async def _send_request(server: Server, bodies: Sequence[bytes], number: int) -> Response:
    return await post(server.port, server.path, bodies[number])


class AudioChecker:
    """Keeps the first sound that a request was answered with, and holds all others against it."""

    def __init__(self) -> None:
        self.checked = 0
        self.mismatches = 0
        self._known: dict[int, Any] = {}

    def check(self, number: int, sound: Any) -> None:
        """Look at an answer to the request with this number."""
        same = self._known.setdefault(number, sound)
        self.checked += 1
        self.mismatches += not (sound.shape == same.shape and np.allclose(sound, same, rtol=0, atol=TOLERANCE))


@dataclass
class Comparison:
    """Servers in turns. `turns` are what they did, by name and load, one for each round."""

    servers: Mapping[str, Server]
    results: defaultdict[tuple[str, int], list[LoadResult[int]]] = field(default_factory=lambda: defaultdict(list))
    rate: float = 0.0
    """Requests a second of the open loop."""
    checker: AudioChecker = field(default_factory=AudioChecker)

    def __post_init__(self) -> None:
        self._requests = make_requests(max(CLOSED_LOOP_CLIENTS.values()))
        self._bodies = {
            name: [json.dumps(one.body(params)).encode() for params in self._requests]
            for name, one in self.servers.items()
        }

    def warm_up(self) -> None:
        """Let each serve some requests, which are not counted."""
        for name in self.servers:
            self._turn(name, partial(closed_loop, asks=range(8), clients=8))

    def run(self) -> None:
        """All rounds."""
        for round_ in range(ROUNDS):
            for clients, count in CLOSED_LOOP_CLIENTS.items():
                self._all(round_, clients, partial(closed_loop, asks=range(count), clients=clients))
            self.rate = self.rate or OPEN_SHARE * self._slowest_batched()
            self._all(round_, OPEN_LOOP, partial(open_loop, asks=range(OPEN_COUNT), rate=self.rate, seed=round_))

    def _all(self, round_: int, load: int, asking: Callable[..., Coroutine[Any, Any, LoadResult[int]]]) -> None:
        for name in sorted(self.servers, reverse=bool(round_ % 2)):
            self.results[name, load].append(self._turn(name, asking))

    def _turn(self, name: str, asking: Callable[..., Coroutine[Any, Any, LoadResult[int]]]) -> LoadResult[int]:
        server, bodies = self.servers[name], self._bodies[name]
        ask = partial(_send_request, server, bodies)
        asyncio.run(ask(0))  # not counted: BentoML's parts refuse what comes first after a pause
        turn = asyncio.run(asking(ask))
        for number, answer in turn.responses:
            self.checker.check(number, server.sound(answer.content))
        return turn

    def _slowest_batched(self) -> float:
        return min(self.rates(name, max(CLOSED_LOOP_CLIENTS))[0] for name, one in self.servers.items() if one.batches)

    def rates(self, name: str, load: int) -> list[float]:
        """Requests a second in each round."""
        return [turn.rate for turn in self.results[name, load]]

    def seconds(self, turn: LoadResult[int]) -> float:
        """How much sound there is in what was asked for."""
        return sum(self._requests[number].tokens for number, _ in turn.responses) * HOP / RATE

    def print_tables(self) -> None:
        """Requests a second with their spread, and how long clients waited."""
        names = sorted(self.servers, key=lambda name: -median(self.rates(name, max(CLOSED_LOOP_CLIENTS))))
        titles = {load: f"{load} at once" for load in CLOSED_LOOP_CLIENTS} | {
            OPEN_LOOP: f"open loop, {self.rate:.1f} requests/s"
        }
        for load, title in titles.items():
            print_table([Row(f"{title}, {name}", "requests/s", self.rates(name, load)) for name in names])
        print(f"\n{'':44} {'sound s/s':>9} {'p50 s':>7} {'p95 s':>7} {'first bytes p50 s':>17} {'refused':>7}")
        for load, title in titles.items():
            for name in names:
                print(f"{f'{title}, {name}':44} {self._waits(self.results[name, load])}")

    def _waits(self, turns: Sequence[LoadResult[int]]) -> str:
        sound = median(self.seconds(turn) / turn.seconds for turn in turns)
        answers = [answer for turn in turns for _, answer in turn.responses]
        waits, refused = (
            [one.latency for one in answers] or [inf],
            sum(len(turn.all) for turn in turns) - len(answers),
        )
        first = median([one.first() for one in answers] or [inf])
        return f"{sound:9.2f} {median(waits):7.2f} {percentile(waits, 0.95):7.2f} {first:17.3f} {refused:7}"
