"""Speech, chat, pictures and a robot on one engine: who was promised something gets it, the others get the rest.

One process, one worker, one thread, real weights. Speech and chat come at random times, speech for a quarter of the
engine and chat for a fifth of it, by what each was seen to cost on this machine. A robot asks five times a second and
wants each reply within 0.2 s. Three pictures are always wanted, which were promised nothing; a network draws them in
parts (see `land_in_parts`). Our rule and one that knows no clocks are given the same traffic, in turns.

Work is counted in calls of ops. Each is worth what it takes under the rule without clocks, so that small batches, which
take longer for the same, are no work done. The clients are in this process; there is no HTTP between.

Workload: the published weights of Hibari (speech), SmolLM2-135M (chat, answers of 16 tokens), the terrain diffusion
network (images) and the hopper policy (robot at 5 Hz): small networks that one core serves, so that all four kinds of
deadline meet on one engine within 10 s. Ratios of costs between kinds differ for larger networks.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf
from pathlib import Path

from bench.claims import Claim, Row, print_table
from bench.deadlines.policies import ThroughputFirst
from bench.deadlines.traffic import SENTENCES, TIMEOUT_S, TTFT_S, Arrival, StreamResult, play, share_on_time
from bench.http.client import percentile
from mstar.config import RuntimeConfig
from mstar.frontend.actor import FrontendActor
from mstar.frontend.core import AwaitingInput, Deliver, RequestEnded
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.planned_model import load_planned_models
from mstar.requests import ActionRequest, ChatRequest, ImageRequest, Message, Sampling, SpeechRequest
from mstar.wire import messages as m
from mstar.wire.slo import Slo

SPEECH, CHAT, PICTURES, ROBOT = "hibari", "smollm2", "land", "hopper"
TERRAIN_MODEL = f"{Path(__file__).with_name('split_terrain.py')}:SplitTerrain"
SHARES = {SPEECH: 0.25, CHAT: 0.2}
"""Which part of the engine each is to want."""
PERIOD_S = 0.2
"""How often the robot asks, and how soon it wants its reply."""
SLOS = {SPEECH: Slo(ttft_s=TTFT_S), CHAT: Slo(), PICTURES: Slo(best_effort=True), ROBOT: Slo(ttft_s=PERIOD_S)}
IMAGES_IN_FLIGHT = 3
"""How many pictures are wanted at any time."""
SENTENCE_RANGE, TOKENS = (2, 6), 16
"""How many sentences a speech has, at least and at most; how long an answer in a chat is at most."""
SAMPLES = 4
"""Requests served one by one to measure their cost."""
WARM_UP_S, SECONDS, ROUNDS = 1.0, 10.0, 2
ON_TIME_TARGET, LATE_LIMIT, WORK_TARGET = 0.99, 0.01, 0.9
"""The bars: chunks of speech on time, replies to the robot that were late, work that is not lost."""
QUESTIONS = ("What is rain?", "Name three rivers.", "Why is the sky blue?", "Tell me of the sea.", "What do bees do?")

Op = tuple[str, str]
"""A model and the name of an op."""


@dataclass(slots=True)
class OpUsage:
    """What an op came to: calls, and the seconds they took."""

    calls: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """Results of the clients of each model in one run or several, and the work of each op in the measured time."""

    results: Mapping[str, Sequence[StreamResult]]
    ops: Mapping[Op, OpUsage]
    seconds: float


# ---------------------------------------------------------------- traffic
def speech(drawn: random.Random) -> SpeechRequest:
    """Something to say."""
    return SpeechRequest(" ".join(drawn.choices(SENTENCES, k=drawn.randint(*SENTENCE_RANGE))), seed=drawn.randrange(99))


def chat(drawn: random.Random) -> ChatRequest:
    """A question."""
    text = f"{drawn.choice(SENTENCES)} {drawn.choice(QUESTIONS)}"
    return ChatRequest((Message("user", (text,)),), Sampling(max_tokens=TOKENS))


REQUEST_BUILDERS = {SPEECH: speech, CHAT: chat}


def traffic(counts: Mapping[str, int], seconds: float, seed: int) -> list[Arrival]:
    """All open-loop arrivals in order: random requests to some models, and those of the robot."""
    import numpy as np

    drawn, seen = random.Random(seed), ActionRequest({"state": np.zeros(15, np.float32)})
    times = {ROBOT: [number * PERIOD_S for number in range(round(seconds / PERIOD_S))]}
    times |= {model: [drawn.uniform(0, seconds) for _ in range(number)] for model, number in counts.items()}
    results = [
        Arrival(at, REQUEST_BUILDERS[model](drawn) if model in REQUEST_BUILDERS else seen, model, SLOS[model])
        for model, own in times.items()
        for at in own
    ]
    return sorted(results, key=lambda one: one.at)


@contextmanager
def image_requests(front: FrontendActor) -> Generator[None]:
    """Meanwhile pictures are drawn: as soon as one is done the next is begun."""
    ends, seeds, is_over = dict[str, threading.Event](), count(), threading.Event()

    def begin() -> None:
        rid, ask, end = front.new_rid(), ImageRequest("", seed=next(seeds)), threading.Event()
        ends[rid] = end

        def on_event(event: Deliver | AwaitingInput | RequestEnded) -> None:
            if isinstance(event, RequestEnded):
                if not is_over.is_set():
                    begin()
                del ends[rid]
                end.set()

        front.submit(m.Submit(rid, PICTURES, m.Value(ask), slo=SLOS[PICTURES]), on_event)

    for _ in range(IMAGES_IN_FLIGHT):
        begin()
    try:
        yield
    finally:
        is_over.set()
        while ends:
            rid, end = next(iter(ends.items()))
            front.cancel(rid)
            end.wait()


# ---------------------------------------------------------------- runs
class Deployment:
    """A front end, and the one worker behind it."""

    def __init__(self, together: InProcessLauncher) -> None:
        self.front = FrontendActor(together.actor_loop, m.Peer("front", 0), together.conductors)
        together.add_frontend(self.front)
        _, self._worker = together.peers()

    def ops(self) -> dict[Op, OpUsage]:
        """What each op came to until now."""
        results = defaultdict[Op, OpUsage](OpUsage)
        for one in self.front.query_stats(self._worker).result().ops:
            for walk in one.walks.values():
                spent = results[one.model, one.op]
                spent.calls += walk.calls
                spent.seconds += walk.busy_s
        return results

    def cost(self, model: str) -> float:
        """How many seconds of the engine a request to a model takes, on average."""
        drawn, before = random.Random(0), self.ops()
        for _ in range(SAMPLES):
            play(self.front, [Arrival(0.0, REQUEST_BUILDERS[model](drawn), model)])
        return sum(spent.seconds for spent in usage_delta(before, self.ops()).values()) / SAMPLES

    def run(self, arrivals: Sequence[Arrival], seconds: float) -> RunResult:
        """Play the arrivals while images are generated. Work is counted for a fixed time; all requests finish."""
        with image_requests(self.front), ThreadPoolExecutor(1) as thread:
            before, begun = self.ops(), time.monotonic()
            played = thread.submit(play, self.front, arrivals)
            time.sleep(seconds)
            ops, took = usage_delta(before, self.ops()), time.monotonic() - begun
            by_model = defaultdict[str, list[StreamResult]](list)
            for arrival, received in zip(arrivals, played.result(), strict=True):
                by_model[arrival.model].append(received)
        return RunResult(by_model, ops, took)


def usage_delta(before: Mapping[Op, OpUsage], now: Mapping[Op, OpUsage]) -> dict[Op, OpUsage]:
    """What ops came to since then."""
    zero = OpUsage()
    results = {op: (spent, before.get(op, zero)) for op, spent in now.items()}
    return {op: OpUsage(new.calls - old.calls, new.seconds - old.seconds) for op, (new, old) in results.items()}


def merge_runs(runs: Sequence[RunResult]) -> RunResult:
    """Several runs as one."""
    received, ops = defaultdict[str, list[StreamResult]](list), defaultdict[Op, OpUsage](OpUsage)
    for ran in runs:
        for model, results in ran.results.items():
            received[model] += results
        for op, spent in ran.ops.items():
            ops[op] = OpUsage(ops[op].calls + spent.calls, ops[op].seconds + spent.seconds)
    return RunResult(received, ops, sum(ran.seconds for ran in runs))


# ---------------------------------------------------------------- figures
def response_time(one: StreamResult) -> float:
    """Seconds until the first output, or until the timeout."""
    return one.first_s if one.chunks else TIMEOUT_S


def is_late(reply: StreamResult) -> bool:
    """Whether the robot had nothing new to do."""
    return response_time(reply) > PERIOD_S


def work_ratio(ours: RunResult, theirs: RunResult) -> float:
    """Best-effort work relative to the throughput scheduler in the same time."""
    done = [0.0, 0.0]
    for op, spent in theirs.ops.items():
        if op[0] in (CHAT, PICTURES) and spent.calls:
            each = spent.seconds / spent.calls
            done[0] += ours.ops.get(op, OpUsage()).calls * each / ours.seconds
            done[1] += spent.calls * each / theirs.seconds
    return done[0] / done[1]


def figures(ran: RunResult) -> list[tuple[str, str, float]]:
    """Each figure of a run, with its unit."""
    inputs, chats, replies = ran.results[SPEECH], ran.results[CHAT], ran.results[ROBOT]
    first = {model: [1e3 * response_time(one) for one in results] for model, results in ran.results.items()}
    busy: dict[str, float] = dict.fromkeys((SPEECH, CHAT, PICTURES, ROBOT), 0.0)
    for (model, _), spent in ran.ops.items():
        busy[model] += spent.seconds
    spans = [(len(one.chunks) - 1, one.chunks[-1][0] - one.chunks[0][0]) for one in chats if one.chunks]
    return [
        *(
            (f"speech: chunks on time, {ms} ms allowed", "%", 100 * share_on_time(inputs, ms / 1e3))
            for ms in (0, 50, 100)
        ),
        *((f"speech: first chunk, p{part}", "ms", percentile(first[SPEECH], part / 100)) for part in (50, 99)),
        *((f"chat: first token, p{part}", "ms", percentile(first[CHAT], part / 100)) for part in (50, 99)),
        ("chat: tokens of one answer", "/s", sum(n for n, _ in spans) / (sum(seconds for _, seconds in spans) or inf)),
        *((f"robot: reply, p{part}", "ms", percentile(first[ROBOT], part / 100)) for part in (50, 99)),
        (f"robot: later than {PERIOD_S} s", "%", 100 * sum(map(is_late, replies)) / len(replies)),
        ("pictures", "/s", ran.ops.get((PICTURES, "relief"), OpUsage()).calls / ran.seconds),
        *((f"engine: {model}", "%", 100 * seconds / ran.seconds) for model, seconds in busy.items()),
        ("engine: all", "%", 100 * sum(busy.values()) / ran.seconds),
        ("not served", "", sum(one.status != "ok" for results in ran.results.values() for one in results)),
    ]


def rows(rule: str, runs: Sequence[RunResult]) -> list[Row]:
    """The figures of a rule, a value for each run."""
    results = zip(*map(figures, runs), strict=True)
    return [Row(f"{rule}, {same[0][0]}", same[0][1], [value for _, _, value in same]) for same in results]


def mixed() -> Claim:
    """What was promised is kept, and little work is lost by it."""
    deployed = load_planned_models({name: name for name in SLOS} | {PICTURES: TERRAIN_MODEL}, {})
    orders = {"ours": None, "throughput": ThroughputFirst()}
    runs = {name: list[RunResult]() for name in orders}
    with ExitStack() as stack:
        rules = dict[str, Deployment]()
        for name, order in orders.items():
            served = stack.enter_context(InProcessLauncher(deployed, options=RuntimeConfig(threads=1), policy=order))
            rules[name] = Deployment(served)
            rules[name].run(traffic(dict.fromkeys(SHARES, 1), WARM_UP_S, ROUNDS), WARM_UP_S)  # what ops cost is learned
        costs = {model: statistics.mean(rule.cost(model) for rule in rules.values()) for model in SHARES}
        counts = {model: max(1, round(share * SECONDS / costs[model])) for model, share in SHARES.items()}
        for seed in range(ROUNDS):
            for name, rule in rules.items():  # in turns, so that a change of the machine's mood meets both
                runs[name].append(rule.run(traffic(counts, SECONDS, seed), SECONDS))
    print_table([row for name, results in runs.items() for row in rows(name, results)])
    return claim(merge_runs(runs["ours"]), merge_runs(runs["throughput"]))


def claim(ours: RunResult, theirs: RunResult) -> Claim:
    """The claim, of all runs of each rule."""
    on_time = share_on_time(ours.results[SPEECH])
    late = statistics.mean(map(is_late, ours.results[ROBOT]))
    work = work_ratio(ours, theirs)
    results = {"ours": ours, "throughput": theirs}
    return Claim(
        f"{ON_TIME_TARGET:.0%} of audio chunks on time, at most {LATE_LIMIT:.0%} of robot replies late; throughput of "
        "other work relative to a scheduler without deadlines",
        round(work, 3),
        WORK_TARGET,
        is_met=on_time >= ON_TIME_TARGET and late <= LATE_LIMIT and work >= WORK_TARGET,
        details={
            name: {f"{what} {unit}": round(value, 2) for what, unit, value in figures(ran)}
            for name, ran in results.items()
        },
    )
