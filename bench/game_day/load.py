"""The load of a game day: many small loops of requests, each with a reference text that its response must equal.

A loop sends one request after another, with a pause between them, until the load ends. References of the toy models
follow from the prompt; those of models with published weights are their responses before the first fault.

Workload: SmolLM2-135M-Instruct (chat), Hibari (speech) and Whisper tiny.en (transcription) with published weights; toy
models for what needs a known text at every step. The rates are low: the faults are measured, not the throughput.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from bench.game_day.client import Answer, Content, Request, classify, parse_events, parse_json, send
from bench.game_day.observations import MIN_PAUSE_S, PENDING, UNANSWERED, WHOLE, RequestRecord
from bench.game_day.realtime import hold_turn
from bench.game_day.server import Server
from bench.models.game_day import count_text, digest_text
from bench.repository import ROOT

PROMPTS = ("Name three colors.", "What is the capital of France?", "Write one sentence about rain.")
SENTENCE = "Good morning. How are you?"
TOKENS = 16
TOO_MANY_WORDS = 12_000
"""Words of a prompt that exceeds the context of SmolLM2."""
CLIENT_MARGIN_S = 15.0
"""Seconds that a client waits after the request timeout of the server."""
KEPT_CHARS = 80
"""Characters of a response that a record keeps."""
CHANGING_STEPS = 100
NO_OUTPUT = ""

Parse = Callable[[Answer], Content]


@dataclass(frozen=True)
class Kind:
    """One loop of the load."""

    name: str
    model: str
    tenant: str
    pause_s: float
    make: Callable[[random.Random], tuple[Request, str | None]]
    """A request and its reference text."""
    parse: Parse = parse_events
    expected_of: Callable[[Content], str] | None = None
    """The reference text of a response that decides it itself, such as the repetition of its first word."""


class Load:
    """Sends requests to a server and records them. `clock` gives the seconds since the start of the load."""

    def __init__(self, server: Server, real_models: Sequence[str], seed: int, request_timeout_s: float) -> None:
        self.records: list[RequestRecord] = []
        self._server, self.real_models = server, real_models
        self._timeout_s = request_timeout_s + CLIENT_MARGIN_S
        self._seed = seed
        self.origin = time.monotonic()
        self._stopping = asyncio.Event()
        self._references: dict[str, str] = {}

    def clock(self) -> float:
        """Seconds since the start of the load."""
        return time.monotonic() - self.origin

    def begin(self) -> None:
        """Start the clock."""
        self.origin = time.monotonic()

    def stop(self) -> None:
        """End all loops after their current request."""
        self._stopping.set()

    async def take_references(self) -> None:
        """Send every request of the models with published weights once, and keep the responses."""
        for kind, request in self._reference_requests():
            answer = await send(self._server.port, request)
            content = kind.parse(answer)
            if classify(answer, content, None, has_left=False) != WHOLE:
                raise RuntimeError(f"no reference for {kind.name}: status {answer.status} {content.code}")
            self._references[_reference_key(request)] = content.text

    def _reference_requests(self) -> list[tuple[Kind, Request]]:
        kinds = {kind.name: kind for kind in self.kinds()}
        chats = [self.chat("bob", "chat", prompt, max_tokens=TOKENS) for prompt in PROMPTS] if "chat" in kinds else []
        files = [kinds[name] for name in ("speech", "transcription") if name in kinds]
        chance = random.Random(0)
        return [(kinds["chat"], chat) for chat in chats] + [(kind, kind.make(chance)[0]) for kind in files]

    # ---------------------------------------------------------------- requests
    def chat(self, tenant: str, model: str, text: str, **more: Any) -> Request:
        """A streamed chat completion."""
        body = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, "stream": True}
        return Request("POST", "/v1/chat/completions", self._server.keys[tenant], json.dumps(body | more).encode())

    def count(self, tenant: str, steps: int, wait: float) -> Callable[[random.Random], tuple[Request, str]]:
        """A request for numbers, with a key of its own."""

        def make(chance: random.Random) -> tuple[Request, str]:
            key = chance.randrange(1_000_000)
            return self.chat(tenant, "toy", f"count {key} {steps} {wait}"), count_text(key, steps)

        return make

    def relay(self, tenant: str) -> Callable[[random.Random], tuple[Request, str]]:
        """The same across two workers."""

        def make(chance: random.Random) -> tuple[Request, str]:
            key = chance.randrange(1_000_000)
            return self.chat(tenant, "pair", f"relay {key} 40 0.015"), count_text(key, 40)

        return make

    def carry(self, tenant: str, mib: int, key: int) -> tuple[Request, str]:
        """A request that moves a large value from worker to worker."""
        return self.chat(tenant, "pair", f"carry {key} {mib}"), digest_text(key, mib)

    def kinds(self) -> list[Kind]:
        """All loops."""
        keys = self._server.keys

        def fixed(request: Request, expected: str | None = None) -> Callable[[random.Random], Any]:
            return lambda _: (request, expected)

        def leaving(chance: random.Random) -> tuple[Request, str]:
            request, text = self.count("bob", 400, 0.02)(chance)
            return replace(request, leave_after=chance.randrange(1, 6)), text

        def slow(chance: random.Random) -> tuple[Request, str]:
            request, text = self.count("alice", 80, 0.0)(chance)
            return replace(request, pause_s=0.03), text

        changing = fixed(self.chat("bob", "toy", f"process {CHANGING_STEPS} 0.01"))
        toys = [
            *(Kind("count", "toy", tenant, 0.2, self.count(tenant, 60, 0.012)) for tenant in ("alice", "bob", "bob")),
            *(Kind("relay", "pair", tenant, 0.2, self.relay(tenant)) for tenant in ("alice", "bob")),
            Kind("leaver", "toy", "bob", 0.5, leaving),
            Kind("slow reader", "toy", "alice", 0.5, slow),
            Kind("changing", "toy", "bob", 0.3, changing, expected_of=repeat_first_word),
            Kind("not repeatable", "toy", "alice", 0.3, fixed(self.chat("alice", "toy", "move 100 0.01"))),
            Kind("raising", "toy", "bob", 2.0, fixed(self.chat("bob", "toy", "raise"))),
            Kind("endless", "toy", "alice", 1.0, self.count("alice", 1_000_000, 0.012)),
            Kind("bad json", "toy", "bob", 1.5, fixed(Request("POST", "/v1/chat/completions", keys["bob"], b"{"))),
            Kind("bad model", "none", "bob", 1.5, fixed(self.chat("bob", "none", "x"))),
            Kind("bad key", "toy", "", 1.5, fixed(replace(self.chat("bob", "toy", "count 1 1 0"), key="wrong"))),
            Kind("generate", "noop", "alice", 0.5, self._generate),
            Kind("metrics", "", "operator", 2.0, fixed(Request("GET", "/metrics", keys["operator"])), parse_metrics),
        ]
        too_long = fixed(self.chat("bob", "chat", "word " * TOO_MANY_WORDS))
        speech = {"model": "voice", "input": SENTENCE, "response_format": "pcm", "seed": 1}
        real = [
            *(Kind("chat", "chat", tenant, 0.3, self._real_chat(tenant)) for tenant in ("alice", "bob")),
            Kind("too long", "chat", "bob", 8.0, too_long),
            Kind("speech", "voice", "alice", 1.5, self._with_reference(
                Request("POST", "/v1/audio/speech", keys["alice"], json.dumps(speech).encode())), parse_bytes),
            Kind("transcription", "asr", "bob", 2.0, self._with_reference(self._upload()), parse_json),
        ]  # fmt: skip
        return toys + [kind for kind in real if kind.model in self.real_models]

    def _generate(self, chance: random.Random) -> tuple[Request, str]:
        steps = chance.randrange(5, 40)
        body = json.dumps({"model": "noop", "request": {"steps": steps}}).encode()
        text = "".join(f"{step} " for step in range(steps))
        return Request("POST", "/v1/generate", self._server.keys["alice"], body), text

    def _real_chat(self, tenant: str) -> Callable[[random.Random], tuple[Request, str | None]]:
        def make(chance: random.Random) -> tuple[Request, str | None]:
            request = self.chat(tenant, "chat", chance.choice(PROMPTS), max_tokens=TOKENS)
            return request, self._references.get(_reference_key(request))

        return make

    def _with_reference(self, request: Request) -> Callable[[random.Random], tuple[Request, str | None]]:
        return lambda _: (request, self._references.get(_reference_key(request)))

    def _upload(self) -> Request:
        sound = (ROOT / "examples" / "question.wav").read_bytes()
        edge = "game-day"
        head = 'Content-Disposition: form-data; name="{}"'
        parts = [
            f"--{edge}\r\n{head.format('model')}\r\n\r\nasr\r\n".encode(),
            f'--{edge}\r\n{head.format("file")}; filename="q.wav"\r\nContent-Type: audio/wav\r\n\r\n'.encode(),
            sound + f"\r\n--{edge}--\r\n".encode(),
        ]
        kind = f"multipart/form-data; boundary={edge}"
        return Request("POST", "/v1/audio/transcriptions", self._server.keys["bob"], b"".join(parts), kind)

    # ---------------------------------------------------------------- loops
    def tasks(self) -> list[asyncio.Task[None]]:
        """Start all loops."""
        loops = [self._loop(kind, random.Random(f"{self._seed} {at}")) for at, kind in enumerate(self.kinds())]
        return [asyncio.create_task(one) for one in (*loops, self._realtime_loop(random.Random(self._seed)))]

    async def _loop(self, kind: Kind, chance: random.Random) -> None:
        while not self._stopping.is_set():
            request, expected = kind.make(chance)
            begun = self.clock()
            try:
                self.records.append(await self.record(kind, request, expected))
            except asyncio.CancelledError:
                self.records.append(RequestRecord(kind.name, kind.model, kind.tenant, begun, self.clock(), PENDING))
                raise
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), kind.pause_s)

    async def record(self, kind: Kind, request: Request, expected: str | None) -> RequestRecord:
        """Send a request and record its end."""
        begun, answer = self.clock(), None
        with suppress(TimeoutError, OSError):
            answer = await asyncio.wait_for(send(self._server.port, request, self.clock), self._timeout_s)
        content = kind.parse(answer) if answer else Content(NO_OUTPUT)
        expected = kind.expected_of(content) if kind.expected_of else expected
        has_left = answer is not None and bool(request.leave_after) and len(answer.arrivals) >= request.leave_after
        outcome = classify(answer, content, expected, has_left=has_left)
        times = [begun, *(answer.arrivals if answer else ()), self.clock()]
        gaps = [*itertools.pairwise(times)]
        return RequestRecord(
            kind.name,
            kind.model,
            kind.tenant,
            begun,
            times[-1],
            outcome,
            answer.status if answer else 0,
            content.code,
            content.text[:KEPT_CHARS],
            max(after - before for before, after in gaps),
            answer.retry_after_s if answer else 0.0,
            has_output=bool(content.text),
            pauses=tuple((before, after) for before, after in gaps if after - before >= MIN_PAUSE_S),
        )

    async def _realtime_loop(self, chance: random.Random) -> None:
        while not self._stopping.is_set():
            begun = self.clock()
            outcome, code, text = UNANSWERED, "", ""
            turn = hold_turn(self._server.port, self._server.keys["bob"], chance.randrange(1_000_000))
            with suppress(TimeoutError):
                outcome, code, text = await asyncio.wait_for(turn, self._timeout_s)
            record = RequestRecord("realtime", "toy", "bob", begun, self.clock(), outcome, 0, code, text[:KEPT_CHARS])
            self.records.append(record)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 0.5)


def parse_bytes(answer: Answer) -> Content:
    """The digest of a file. A response that is cut has none."""
    if answer.status != 200:
        return parse_json(answer)
    text = hashlib.sha256(answer.body).hexdigest() if answer.is_complete else ""
    return Content(text, "", is_finished=answer.is_complete)


def repeat_first_word(content: Content) -> str:
    """The text of a response that repeats its first word. A mixture of two computations differs from it."""
    word = content.text.partition(" ")[0]
    return f"{word} " * CHANGING_STEPS if word else ""


def parse_metrics(answer: Answer) -> Content:
    """A page of metrics is complete if it has one."""
    return Content("", "", is_finished=True) if b"mstar_requests_total" in answer.body else parse_json(answer)


def _reference_key(request: Request) -> str:
    return hashlib.sha256(request.body).hexdigest()
