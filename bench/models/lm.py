"""A language model of the shape of SmolLM2-135M in bf16 with random weights, the same in every process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling

sys.path.append(str(Path(__file__).parents[2]))  # a worker loads this file by itself
from bench.engine import make_network


class Lm(Model):
    def __init__(self) -> None:
        self.lm = CausalLM(make_network, eos_token_id=-1, pages=2048)

    @walk
    def write(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Text]:
        kv = self.lm.kv()
        s = loop(steps=sampling.max_tokens, token=self.lm.next_token(prompt, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, sampling)
            s.stop_when(self.lm.is_end(s.token))

    async def route(self, request: tuple[list[int], int]) -> None:
        import torch

        prompt, new = request
        await self.write(torch.tensor(prompt), Sampling(max_tokens=new))
