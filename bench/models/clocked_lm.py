"""A tiny Llama on the pretend GPU, whose decode steps take 8 ms on the device; with and without run-ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling

STEP_S = 0.008
SIZES = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@dataclass
class GenerateRequest:
    prompt: list[int]
    sampling: Sampling


def network() -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


class ClockedLM(CausalLM):
    """Reports the time of the device in its statistics."""

    has_run_ahead = True

    def prepare(self) -> None:
        from mstar.nn.pretend_clock import with_clock

        super().prepare()
        if not self.has_run_ahead:
            self.decoder.ahead = None
        self._stack = ExitStack()
        self._clock = self._stack.enter_context(with_clock(STEP_S, computes=False))  # until the process ends

    def memory_stats(self) -> dict[str, int]:
        times = {"device_busy_us": self._clock.busy_s, "host_time_us": time.perf_counter()}
        return {**super().memory_stats(), **{name: int(seconds * 1e6) for name, seconds in times.items()}}


class PlainLM(ClockedLM):
    has_run_ahead = False


class RunAhead(Model):
    lm_class = ClockedLM

    def __init__(self) -> None:
        self.lm = self.lm_class(network, eos_token_id=-1, pages=2048)

    @walk
    def write(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Text]:
        kv = self.lm.kv()
        s = loop(steps=sampling.max_tokens, token=self.lm.next_token(prompt, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.stop_when(self.lm.is_end(s.token))
            s.token = self.lm.next_token(s.token, kv, sampling)

    async def route(self, request: GenerateRequest) -> None:
        import torch

        await self.write(torch.tensor(request.prompt), request.sampling)


class Plain(RunAhead):
    lm_class = PlainLM
