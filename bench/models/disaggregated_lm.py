"""The language model of `bench/models/lm.py` with a walk that reads and one that writes, so that they can be apart."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path

from mstar import KV, Int64, Model, Tensor, Text, loop, walk
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling

sys.path.append(str(Path(__file__).parents[2]))  # a worker loads this file by itself
from bench.engine import make_network


class DisaggregatedLm(Model):
    def __init__(self) -> None:
        self.lm = CausalLM(make_network, eos_token_id=-1, pages=2048)

    @walk
    def read(self, prompt: Int64[Tensor, "T"], sampling: Sampling, kv: KV) -> Int64[Tensor, "1"]:
        return self.lm.next_token(prompt, kv, sampling)

    @walk
    def write(self, token: Int64[Tensor, "1"], sampling: Sampling, kv: KV) -> Iterator[Text]:
        s = loop(steps=sampling.max_tokens, token=token)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, sampling)

    async def route(self, request: tuple[list[int], int]) -> None:
        import torch

        prompt, new = request
        kv, sampling = self.lm.kv(), Sampling(max_tokens=new)
        await self.write(await self.read(torch.tensor(prompt), sampling, kv), sampling, kv)


class SplitLm(DisaggregatedLm):
    """Also emits at the end of the prompt: the next output waits for the KV cache at the other worker."""

    @walk
    def read(self, prompt: Int64[Tensor, "T"], sampling: Sampling, kv: KV) -> Generator[Text, None, Tensor]:
        token = self.lm.next_token(prompt, kv, sampling)
        yield Text(token)
        return token


class WholeLm(SplitLm):
    """Moves a KV cache at once, after the prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.lm = CausalLMWithoutParts(make_network, eos_token_id=-1, pages=2048)


class CausalLMWithoutParts(CausalLM):
    def prepare(self) -> None:
        from mstar.nn.kv import kv_cache

        super().prepare()
        kv_cache.MIN_SENT_AHEAD = sys.maxsize
