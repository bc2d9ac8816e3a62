"""The engine against the bare loop, against transformers' generate, and its own work beside the forward.

All variants alternate in one run.

Workload: the published SmolLM2-135M at full size (30 layers of width 576) in bf16. Weights are random, which costs the
same; no part of the network is smaller than published.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

from bench.claims import Claim, Row, paired_ratio, print_table
from bench.peers.hf_peer import generate_one_by_one
from bench.peers.model import SHAPE, RunResult, make_prompts

SIZES = (1, 8, 16, 32)
CONTEXT_TOKENS = 256
"""How many positions a request has read when its steps are timed."""
STEPS = 6
ROUNDS = 5


@functools.cache
def make_network() -> Any:
    """The library's model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).to(torch.bfloat16).eval()


class EngineLoop:
    """The component in an engine, as a worker would run it."""

    def __init__(self, made: Any, **options: Any) -> None:
        import copy

        from mstar.engine.engine import Engine
        from mstar.nn.lm.causal_lm import CausalLM

        self.lm = CausalLM(lambda: copy.deepcopy(made), eos_token_id=-1, **options)
        self.lm.name = "lm"
        self.engine = Engine(max_batched_tokens=4096)
        self.op = self.lm.ops()["next_token"]
        self.lm.kv().free()  # loads

    def request(self) -> Any:
        from mstar.walk.states import KV

        return self.engine.new_state(self.lm, KV)

    def jobs(self, tokens: Sequence[Any], caches: Sequence[Any]) -> list[Any]:
        from mstar.engine.jobs import Job
        from mstar.requests import Sampling

        params = Sampling()
        return [Job({"tokens": t, "kv": c, "sampling": params}) for t, c in zip(tokens, caches, strict=True)]

    def run_jobs(self, jobs: list[Any]) -> list[Any]:
        from mstar.engine.jobs import JobDone

        results = self.engine.run(self.lm, self.op, jobs)
        for result in results:
            if not isinstance(result, JobDone):
                raise RuntimeError(f"a step gave {result}")
        return [result.values[0] for result in results]  # type: ignore[union-attr]

    def step(self, tokens: Sequence[Any], caches: Sequence[Any]) -> list[Any]:
        return self.run_jobs(self.jobs(tokens, caches))

    def run(self, prompts: list[list[int]], new: int) -> RunResult:
        """Generate a number of tokens for all prompts at once, greedily."""
        import torch

        begun = time.perf_counter()
        caches = [self.request() for _ in prompts]
        tokens = self.step([torch.tensor(prompt) for prompt in prompts], caches)
        outputs = [[int(token)] for token in tokens]
        for _ in range(new - 1):
            tokens = self.step(tokens, caches)
            for output, token in zip(outputs, tokens, strict=True):
                output.append(int(token))
        return RunResult(time.perf_counter() - begun, outputs)


def steps(served: EngineLoop, bare: Any) -> list[Row]:
    """A step of the engine, and of the bare loop, with all requests at about the same position."""
    import torch

    caches = [served.request() for _ in range(max(SIZES))]
    prompts = [torch.tensor(prompt) for prompt in make_prompts(max(SIZES), CONTEXT_TOKENS, 1)]
    tokens = [one for at in range(0, 32, 8) for one in served.step(prompts[at : at + 8], caches[at : at + 8])]
    rows: dict[tuple[str, int], list[float]] = {(who, size): [] for size in SIZES for who in ("engine", "bare")}
    for round_ in range(ROUNDS + 1):
        for size in SIZES:
            marks = [cache.snapshot() for cache in caches[:size]]
            now, plain = tokens[:size], torch.cat(tokens[:size])
            spent: dict[str, list[float]] = {"engine": [], "bare": []}
            for at in range(STEPS):
                turns = {
                    "engine": lambda: served.step(now, caches[:size]),  # noqa: B023 - called in this iteration
                    "bare": lambda: bare.step(plain, CONTEXT_TOKENS + at),  # noqa: B023
                }
                for who in sorted(turns, reverse=bool(at % 2)):  # neither always comes second
                    begun = time.perf_counter()
                    done = turns[who]()
                    spent[who].append((time.perf_counter() - begun) * 1000)
                    now, plain = (done, plain) if who == "engine" else (now, done[:, 0])
            for cache, mark in zip(caches, marks, strict=False):
                cache.rollback(mark)
            for who, values in spent.items():
                rows[who, size] += values if round_ else []  # the first round warms
    return [
        Row(f"{who} step, {size} at once, {CONTEXT_TOKENS} held", "ms", values) for (who, size), values in rows.items()
    ]


def prefill(served: EngineLoop, bare: Any) -> list[Row]:
    """A prompt of 512 tokens."""
    import torch

    spent: dict[str, list[float]] = {"engine": [], "bare": []}
    for seed in range(8):
        tokens, cache = torch.tensor(make_prompts(1, 512, seed)[0]), served.request()
        turns = {"engine": lambda: served.step([tokens], [cache]), "bare": lambda: bare.prefill(tokens)}  # noqa: B023
        for who in sorted(turns, reverse=bool(seed % 2)):
            begun = time.perf_counter()
            turns[who]()
            if seed > 1:
                spent[who].append((time.perf_counter() - begun) * 1000)
    return [Row(f"{who} prefill of 512", "ms", values) for who, values in spent.items()]


def compare_generate(served: EngineLoop) -> list[Row]:
    """32 requests at once in the engine, and one of them in transformers, which would take them one by one."""
    rates: dict[str, list[float]] = {"engine, 32 at once": [], "generate, one by one": []}
    generate_one_by_one(make_network(), make_prompts(1, 16, 0), 2)
    for seed in range(2):
        prompts = make_prompts(32, 64, 100 + seed)
        rates["engine, 32 at once"].append(served.run(prompts, 32).tokens_per_s)
        rates["generate, one by one"].append(generate_one_by_one(make_network(), prompts[:1], 32).tokens_per_s)
    return [Row(f"{who}, 64 in and 32 out", "tokens/s", values) for who, values in rates.items()]


def overhead() -> Row:
    """What a step of 128 requests costs beside the forward of a tiny network, in CPU time of one thread."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    tiny = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).to(torch.bfloat16)
    served = EngineLoop(tiny, pages=4096)
    caches = [served.request() for _ in range(128)]
    tokens = served.step([torch.arange(row % 30 + 1) + 3 for row in range(128)], caches)
    decoder, inside = served.lm.decoder, [0.0]
    forward = decoder._forward

    def timed(*given: Any) -> Any:
        begun = time.thread_time()
        result = forward(*given)
        inside[0] += time.thread_time() - begun
        return result

    decoder._forward = timed
    spent: list[float] = []
    for _ in range(100):
        jobs = served.jobs(tokens, caches)
        inside[0], begun = 0.0, time.thread_time()
        tokens = served.run_jobs(jobs)
        spent.append((time.thread_time() - begun - inside[0]) * 1000)
    torch.set_num_threads(before)
    return Row("beside the forward, 128 at once", "ms", spent)


def engine() -> Claim:
    """The headline."""
    from bench.bare_loop import BareLoop

    served, bare = EngineLoop(make_network(), pages=2048), BareLoop(make_network(), max(SIZES), 2 * CONTEXT_TOKENS)
    gc.freeze()  # as a server does when it has loaded: what the libraries made need not be looked through again
    rows = [*steps(served, bare), *prefill(served, bare), *compare_generate(served), overhead()]
    print_table(rows)
    results = {row.name: row.values for row in rows}
    held = f"at once, {CONTEXT_TOKENS} held"
    shares = {
        size: paired_ratio(results[f"bare step, {size} {held}"], results[f"engine step, {size} {held}"])
        for size in SIZES
    }
    written = [results[f"{who}, 64 in and 32 out"] for who in ("engine, 32 at once", "generate, one by one")]
    more = {
        "of_bare": {str(size): round(share, 3) for size, share in shares.items()},
        "prefill_of_bare": round(paired_ratio(results["bare prefill of 512"], results["engine prefill of 512"]), 3),
        "times_generate": round(paired_ratio(*written), 2),
        "overhead_ms": round(statistics.median(results["beside the forward, 128 at once"]), 3),
    }
    value = round(min(shares.values()), 3)
    is_met = more["prefill_of_bare"] >= 0.9 and more["times_generate"] >= 8 and more["overhead_ms"] <= 1
    claim = "a step of the engine is 0.95 of the bare loop or more, a prefill 0.9, 32 requests 8 times generate"
    return Claim(claim, value, 0.95, is_met=value >= 0.95 and is_met, details=more)
