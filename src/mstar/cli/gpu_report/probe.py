"""A small language model with random weights, which the report serves in worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.cli.gpu_report.decoders import networks, random_network
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling


@dataclass
class ProbeRequest:
    """A prompt of tokens."""

    prompt: list[int]
    sampling: Sampling


class Probe(Model):
    """A small Llama."""

    def __init__(self) -> None:
        self.lm = CausalLM(lambda: random_network(networks()["llama"]), eos_token_id=2, pages=256)

    @walk
    def write(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Text]:
        """Write tokens."""
        kv = self.lm.kv()
        s = loop(steps=sampling.max_tokens, token=self.lm.next_token(prompt, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, sampling)

    async def route(self, request: ProbeRequest) -> None:
        """Write an answer."""
        import torch

        await self.write(torch.tensor(request.prompt), request.sampling)
