"""A crowd of requests in one engine: they join, pause, fork, are cut in pieces and leave memory, all at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, Unfinished
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling
from mstar.walk.states import KV
from tests.nn.lm.counter_based_generate import counter_based_draws
from tests.nn.lm.model_families import network, paged_network


def make_component(name: str, **sizes: Any) -> CausalLM:
    """A family's network as a component with little memory, cut fine."""
    lm = CausalLM(lambda: paged_network(name), eos_token_id=2, **({"pages": 256, "page_size": 4} | sizes))
    lm.name = "lm"
    return lm


def prompts(count: int, seed: int = 1) -> list[torch.Tensor]:
    """Prompts of many lengths, the shortest a single token, one longer than any sliding window here."""
    chosen = random.Random(seed)
    lengths = [1, 2, 70, *(chosen.randint(1, 40) for _ in range(count - 3))]
    torch.manual_seed(seed)
    return [torch.randint(3, 97, (length,)) for length in lengths[:count]]


def reference_tokens(name: str, prompt: torch.Tensor, params: Sampling) -> list[int]:
    """What the library's own generate writes after a prompt."""
    return generate_tokens(network(name), prompt, params)


def generate_tokens(library: Any, prompt: torch.Tensor, params: Sampling) -> list[int]:
    """What a network of the library writes after a prompt."""
    how: dict[str, Any] = {"do_sample": False}
    if params.temperature:
        how = {"do_sample": True, "temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        how |= {"min_p": params.min_p or None}
    how["repetition_penalty"] = params.repetition_penalty
    with counter_based_draws(params.seed):
        made = library.generate(prompt[None], max_new_tokens=params.max_tokens, eos_token_id=-1, **how)
    return made[0, len(prompt) :].tolist()


class Request:
    """One prompt being continued."""

    def __init__(self, cache: KV, prompt: torch.Tensor, params: Sampling) -> None:
        self.cache, self.params = cache, params
        self.written: list[int] = []
        self._prompt = prompt
        self._job: Job | None = None

    @property
    def is_over(self) -> bool:
        return len(self.written) == self.params.max_tokens

    def job(self) -> Job:
        """Its next call, or the one that is not finished."""
        if self._job is None:
            given = torch.tensor(self.written[-1:]) if self.written else self._prompt
            self._job = Job({"tokens": given, "kv": self.cache, "sampling": self.params})
        return self._job

    def add_result(self, result: Any) -> None:
        assert isinstance(result, JobDone | Unfinished), result
        if isinstance(result, JobDone):
            self.written.append(int(result.values[0]))
            self._job = None

    def fork(self, engine: Engine) -> Request:
        """Another request that is where this one is."""
        twin = Request(engine.fork(self.cache), self._prompt, self.params)
        twin.written = [*self.written]
        return twin


class ConcurrentRequests:
    """Serves prompts with sampling parameters; `chosen` decides everything that a scheduler might."""

    def __init__(self, lm: CausalLM, seed: int, *, token_budget: int | None = None, largest: int = 16) -> None:
        self.lm = lm
        self.chosen = random.Random(seed)
        self.engine = Engine(max_batched_tokens=token_budget)
        self.largest = largest
        self.forks: list[tuple[int, Request]] = []

    def serve(
        self, given: Sequence[tuple[torch.Tensor, Sampling]], *, forks: int = 0, evictions: float = 0
    ) -> list[Any]:
        """What each request wrote, after some of them were forked, and with some pushed out of memory at each step."""
        requests = [Request(self.engine.new_state(self.lm, KV), prompt, params) for prompt, params in given]
        while waiting := [one for one in (*requests, *(twin for _, twin in self.forks)) if not one.is_over]:
            batch = self.chosen.sample(waiting, self.chosen.randint(1, min(len(waiting), self.largest)))
            results = self.engine.run(self.lm, self.lm.ops()["next_token"], [one.job() for one in batch])
            for one, result in zip(batch, results, strict=True):
                one.add_result(result)
            at = self.chosen.randrange(len(requests))
            if len(self.forks) < forks and requests[at]._job is None:
                self.forks.append((at, requests[at].fork(self.engine)))
            for one in waiting:
                if one.cache.is_resident and self.chosen.random() < evictions:
                    one.cache.evict()
            self.check_memory()
        for at, twin in self.forks:
            assert twin.written == requests[at].written, "a fork writes what its original does"
        return [one.written for one in requests]

    def check_memory(self) -> None:
        """Check the accounting of the pages."""
        self.lm.decoder.store.pool.check()
