"""The composite model behind mstar and behind general model servers: the same requests, in turns, on the same cores.

Requests are ragged: each has its own number of frames and wants its own length of sound. Every answer is compared with
what another server gave for the same request. How a server is set up is told in `bench.peers.servers`.
"""

from __future__ import annotations

import asyncio
import json
import random
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
from bench.cost.usage import read_tree
from bench.http.client import percentile
from bench.peers.clients import LoadResult, Response, closed_loop, open_loop, post
from bench.peers.peer_servers import PEERS, ServerStartError, mstar_peer, run_server
from bench.peers.traffic import HOP, RATE, SpeechRequest, decode_numbers, encode_array, make_requests
from bench.peers.venvs import FOLDER, find_prepared

OURS = "mstar"
MSTAR = mstar_peer(OURS, "pipeline_model", "/v1/generate", threads=1)
CLOSED_LOOP_CLIENTS = {1: 4, 8: 16, 16: 48, 64: 96}
"""Number of requests by number of clients."""
OPEN_LOOP, OPEN_COUNT, OPEN_SHARE = 0, 20, 0.7
"""Requests at random times, by a share of what the slowest server that batches can do."""
PLAYBACK_START_S = 1.0
"""When a client starts to play, after it asked."""
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
    pid: int = 0
    samples_so_far: Callable[[bytes], int] = lambda _: 0
    """Samples in an incomplete response; 0 for a server that does not stream."""


def peer_body(request: SpeechRequest) -> Mapping[str, Any]:
    """A request for a general model server."""
    return {"frames": encode_array(request.frames), "tokens": request.tokens}


def peer_audio(content: bytes) -> Any:
    """What one answered."""
    return decode_numbers(json.loads(content)["sound"])


def triton_body(request: SpeechRequest) -> Mapping[str, Any]:
    """The request of a general model server as the one tensor that Triton's protocol carries."""
    data = [json.dumps(peer_body(request))]
    return {"inputs": [{"name": "body", "shape": [1, 1], "datatype": "BYTES", "data": data}]}


def triton_audio(content: bytes) -> Any:
    """The tensor of the answer as sound."""
    return decode_numbers(json.loads(content)["outputs"][0]["data"][0])


def mstar_body(request: SpeechRequest) -> Mapping[str, Any]:
    """A request for mstar's surface for any model."""
    frames = {"dtype": "float32", "shape": request.frames.shape, "data": encode_array(request.frames)}
    return {"model": "model", "request": {"frames": frames, "tokens": request.tokens}}


def mstar_audio(content: bytes) -> Any:
    """The events of its answer, put together."""
    return np.concatenate(_chunks(content))


def mstar_samples(content: bytes) -> int:
    """Samples in the first bytes of an answer."""
    return sum(map(len, _chunks(content)))


def _chunks(content: bytes) -> list[Any]:
    events = [json.loads(one) for one in EVENT.findall(content)]
    return [decode_numbers(one["value"]["data"]) for one in events if one.get("kind") == "Audio"]


PROTOCOLS = {"json": (peer_body, peer_audio), "triton": (triton_body, triton_audio)}
"""How a request is sent and an answer is read, by protocol of a peer."""


@contextmanager
def servers(folder: Path = FOLDER) -> Generator[tuple[dict[str, Server], dict[str, str]]]:
    """All that can be started, by name, and why the others cannot."""
    there, absent = dict[str, Server](), dict[str, str]()
    (params,) = make_requests(1)
    with ExitStack() as stack:
        for peer in reversed(PEERS):  # Ray first: it gives up on a busy machine
            if (python := find_prepared(folder / peer.venv, peer.needs)) is None:
                absent[peer.title] = f"not installed: python -m bench.peers.install {peer.venv}"
                continue
            body, audio = PROTOCOLS[peer.protocol]
            try:
                running = stack.enter_context(run_server(peer, python, json.dumps(body(params)).encode()))
            except ServerStartError as error:
                absent[peer.title] = str(error)
            else:
                there[peer.title] = Server(running.port, peer.path, body, audio, peer.batches, running.pid)
        running = stack.enter_context(run_server(MSTAR, Path(sys.executable), json.dumps(mstar_body(params)).encode()))
        there[OURS] = Server(
            running.port, MSTAR.path, mstar_body, mstar_audio, pid=running.pid, samples_so_far=mstar_samples
        )
        yield there, absent


# ---------------------------------------------------------------- the race
async def _send_request(server: Server, bodies: Sequence[bytes], number: int) -> Response:
    return await post(server.port, server.path, bodies[number])


def is_on_time(response: Response, samples_so_far: Callable[[bytes], int]) -> bool:
    """Whether each part came before a client had played all parts before it."""
    content = b""
    for at, part in response.parts:
        if at - response.sent_at > PLAYBACK_START_S + samples_so_far(content) / RATE:
            return False
        content += part
    return True


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
    """Servers in turns, in random order. `results` are what they did, by name and load."""

    servers: Mapping[str, Server]
    results: defaultdict[tuple[str, int], list[LoadResult[int]]] = field(default_factory=lambda: defaultdict(list))
    cpu_s: defaultdict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    """CPU time per request of all processes of a server, by name and load."""
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
        """One round: each server at each load. The five runs of a claim are five rounds."""
        for clients, count in CLOSED_LOOP_CLIENTS.items():
            self._all(clients, partial(closed_loop, asks=range(count), clients=clients))
        self.rate = OPEN_SHARE * self._slowest_batched()
        self._all(OPEN_LOOP, partial(open_loop, asks=range(OPEN_COUNT), rate=self.rate, seed=0))

    def _all(self, load: int, asking: Callable[..., Coroutine[Any, Any, LoadResult[int]]]) -> None:
        for name in random.sample([*self.servers], len(self.servers)):
            before = read_tree(self.servers[name].pid)
            turn = self._turn(name, asking)
            used = read_tree(self.servers[name].pid) - before
            self.results[name, load].append(turn)
            self.cpu_s[name, load].append(used.cpu_us / 1e6 / len(turn.all))

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

    def on_time_share(self, name: str, load: int) -> float:
        """Share of answers that play without a gap by a client that starts to play PLAYBACK_START_S after it asked."""
        server = self.servers[name]
        responses = [response for turn in self.results[name, load] for _, response in turn.responses]
        return sum(is_on_time(response, server.samples_so_far) for response in responses) / max(1, len(responses))

    def print_tables(self) -> None:
        """Requests a second with their spread, and how long clients waited."""
        names = sorted(self.servers, key=lambda name: -median(self.rates(name, max(CLOSED_LOOP_CLIENTS))))
        titles = {load: f"{load} at once" for load in CLOSED_LOOP_CLIENTS} | {
            OPEN_LOOP: f"open loop, {self.rate:.1f} requests/s"
        }
        for load, title in titles.items():
            print_table([Row(f"{title}, {name}", "requests/s", self.rates(name, load)) for name in names])
        columns = {
            "sound s/s": 9,
            "p50 s": 7,
            "p95 s": 7,
            "first bytes p50 s": 17,
            "refused": 7,
            "on time": 7,
            "CPU s": 6,
        }
        print("\n" + " " * 45 + " ".join(f"{column:>{width}}" for column, width in columns.items()))
        for load, title in titles.items():
            for name in names:
                print(
                    f"{f'{title}, {name}':44} {self._waits(self.results[name, load])} "
                    f"{self.on_time_share(name, load):7.2f} {median(self.cpu_s[name, load]):6.3f}"
                )

    def _waits(self, turns: Sequence[LoadResult[int]]) -> str:
        sound = median(self.seconds(turn) / turn.seconds for turn in turns)
        answers = [answer for turn in turns for _, answer in turn.responses]
        waits, refused = (
            [one.latency for one in answers] or [inf],
            sum(len(turn.all) for turn in turns) - len(answers),
        )
        first = median([one.first() for one in answers] or [inf])
        return f"{sound:9.2f} {median(waits):7.2f} {percentile(waits, 0.95):7.2f} {first:17.3f} {refused:7}"
