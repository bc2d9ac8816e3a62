"""SmolVLM2: a vision-language model (VLM) for chat about images.

Components: `processor` (tokenizer), `vision_encoder` (SigLIP, cached by image content) and `lm`. The walk encodes each
image once, merges its embeddings into the prompt, and decodes the answer. It reads no video and was not trained on
tools; a forced tool call uses a grammar.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from mstar import Model, Text, choose, each, loop, walk
from mstar.errors import Unsupported
from mstar.models.smolvlm.checkpoint import DEFAULT_WEIGHTS, Checkpoint
from mstar.models.smolvlm.language_model import LanguageModel
from mstar.models.smolvlm.processor import Processor
from mstar.models.smolvlm.vision_encoder import VisionEncoder
from mstar.nn.encoder import TenantState
from mstar.requests import ChatRequest, Finish, ImageInput, Message, Sampling


class SmolVlmText(Model):
    """Text-only half: does not load the vision encoder.

    `weights` is a folder in the Hugging Face layout, or `hub:NAME`.
    """

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.lm = Processor(self.checkpoint), LanguageModel(self.checkpoint)

    @walk
    def write(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Answer a conversation without images."""
        tokens, _, max_tokens = self.processor.process(chat)
        kv = self.lm.kv()
        first = self.lm.next_token(tokens, kv, chat.sampling)
        return (yield from self.decode_answer(chat, tokens, max_tokens, first, kv))

    def decode_answer(
        self, chat: ChatRequest, tokens: Any, max_tokens: int, first_token: Any, kv: Any
    ) -> Generator[Text, None, Finish]:
        """Sub-walk that decodes the answer from its first token on."""
        s = loop(steps=choose(self.lm.is_over(first_token, kv, chat.sampling), 0, max_tokens), token=first_token)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.finish(tokens, s.token, kv, chat.sampling)

    async def route(self, request: ChatRequest) -> Finish:
        """Answer. Rejects images."""
        if has_images(request):
            raise Unsupported("this model reads no images\n  fix: send text only, or serve smolvlm")
        return await self.write(request)

    def warmup_requests(self) -> Sequence[Any]:
        """One short conversation."""
        return [ChatRequest((Message("user", ("Hello.",)),), Sampling(max_tokens=2))]

    def input_types(self) -> tuple[type, ...]:
        """Text only."""
        return (str,)

    def default_sampling(self) -> Sampling | None:
        """Return the sampling parameters of the checkpoint, None if it has none."""
        return self.checkpoint.default_sampling

    def max_context_tokens(self) -> int | None:
        """Return the context length in tokens, None if it is unknown."""
        return self.checkpoint.max_positions

    def max_text_bytes(self) -> int | None:
        """Return the bytes of text above which a conversation exceeds the context, None if there is no bound."""
        max_positions = self.checkpoint.max_positions
        return None if max_positions is None else self.lm.max_text_bytes(max_positions)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Decode token ids to text."""
        return self.lm.detokenize(tokens)


class SmolVlm(SmolVlmText):
    """Adds images."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        super().__init__(weights)
        self.vision_encoder = VisionEncoder(self.checkpoint)

    @walk
    def write_with_images(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Answer a conversation with images."""
        tokens, images, max_tokens = self.processor.process(chat)
        owner, encoded = self.vision_encoder.state(TenantState), each(images)
        for image in encoded:
            encoded.collect(states=self.vision_encoder.encode(image, owner))

        kv = self.lm.kv()
        ids, embeddings = self.lm.merge_embeddings(tokens, encoded.states)
        first = self.lm.next_token_mixed(ids, embeddings, kv, chat.sampling)
        return (yield from self.decode_answer(chat, tokens, max_tokens, first, kv))

    async def route(self, request: ChatRequest) -> Finish:
        """Answer. A conversation without images skips the vision encoder."""
        return await (self.write_with_images if has_images(request) else self.write)(request)

    def input_types(self) -> tuple[type, ...]:
        """Text and images."""
        return (str, ImageInput)


def has_images(chat: ChatRequest) -> bool:
    """Whether a conversation has an image."""
    return any(isinstance(part, ImageInput) for message in chat.messages for part in message.parts)
