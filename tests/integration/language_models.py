"""Language models with random weights, identical in every process: one walk prefills, another decodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mstar import KV, Int64, Model, Tensor, Text, loop, walk
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling

TINY = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SMOLLM2 = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


@dataclass
class GenerateRequest:
    """A prompt and its sampling parameters."""

    prompt: list[int]
    sampling: Sampling


def network(sizes: dict[str, Any]) -> Any:
    """A Llama of these sizes, with weights that make its outputs depend on the prompt."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    return model


class Tiny(Model):
    """A tiny Llama."""

    sizes, pages = TINY, 1024

    def __init__(self) -> None:
        self.lm = CausalLM(lambda: network(self.sizes), eos_token_id=5, pages=self.pages, deterministic=True)

    @walk
    def read(self, prompt: Int64[Tensor, "T"], sampling: Sampling, kv: KV) -> Int64[Tensor, "1"]:
        return self.lm.next_token(prompt, kv, sampling)

    @walk
    def write(self, token: Int64[Tensor, "1"], sampling: Sampling, kv: KV) -> Iterator[Text]:
        s = loop(steps=sampling.max_tokens, token=token)
        for _ in s:
            yield Text(s.token)
            s.stop_when(self.lm.is_end(s.token))
            s.token = self.lm.next_token(s.token, kv, sampling)

    async def route(self, request: GenerateRequest) -> None:
        import torch

        kv = self.lm.kv()
        token = await self.read(torch.tensor(request.prompt), request.sampling, kv)
        await self.write(token, request.sampling, kv)


class WideHeads(Tiny):
    """A tiny Llama whose heads have a size that vLLM has kernels for."""

    sizes = TINY | {"hidden_size": 128, "num_attention_heads": 2, "head_dim": 64, "max_position_embeddings": 512}


class FewPages(Tiny):
    """The same with few KV pages."""

    pages = 24


class SmolLm2Sized(Tiny):
    """The shape of SmolLM2-135M."""

    sizes = SMOLLM2
