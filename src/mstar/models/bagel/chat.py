"""BAGEL chat: reads text and images, and writes text. Image generation is added in `bagel`.

A conversation is prefilled part by part, each text between its start and end token. Roles are ignored, because the
published model has none. The VAE is not loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from mstar import KV, Model, Tensor, Text, choose, loop, walk
from mstar.models.bagel.checkpoint import DEFAULT_WEIGHTS, Checkpoint
from mstar.models.bagel.lm import MixtureLM
from mstar.models.bagel.processor import Processor
from mstar.models.bagel.vision_encoder import VisionEncoder
from mstar.requests import ChatRequest, Finish, ImageInput, Sampling


class BagelChat(Model):
    """Answers chat requests. `weights` is a folder in the Hugging Face layout, or `hub:NAME`."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.vision_encoder, self.lm = (
            Processor(self.checkpoint),
            VisionEncoder(self.checkpoint),
            MixtureLM(self.checkpoint),
        )

    @walk
    def read(self, text: str, main: KV) -> None:
        """Prefill a text."""
        self.lm.hidden_states(self.processor.tokenize(text), main)

    @walk
    def read_image(self, image: ImageInput, main: KV) -> None:
        """Encode and prefill an image."""
        self.lm.read_image(self.vision_encoder.encode(self.processor.vit_pixels(image)), main)

    @walk
    def answer(self, sampling: Sampling, main: KV) -> Generator[Text, None, Finish]:
        """Decode the answer."""
        return self.lm.finish((yield from self.write(sampling, main)), main, sampling)

    def write(self, sampling: Sampling, main: KV) -> Generator[Text, None, Tensor]:
        """Sub-walk that decodes a text. Returns the token at which it ended."""
        first = self.lm.next_token(self.processor.start_token(), main, sampling)
        s = loop(steps=choose(self.lm.is_over(first, main, sampling), 0, sampling.max_tokens), token=first)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, main, sampling)
            s.stop_when(self.lm.is_over(s.token, main, sampling))
        return s.token

    async def route(self, request: ChatRequest) -> Finish:
        """Read all parts of the conversation, then answer."""
        main = self.lm.kv()
        for part in (part for message in request.messages for part in message.parts):
            await (self.read_image(part, main) if isinstance(part, ImageInput) else self.read(str(part), main))
        return await self.answer(request.sampling, main)

    def input_types(self) -> tuple[type, ...]:
        """Text and images."""
        return (str, ImageInput)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Decode token ids to text."""
        return self.lm.detokenize(tokens)
