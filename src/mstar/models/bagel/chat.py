"""BAGEL where nobody draws: it reads texts and pictures, and writes what follows.

A conversation is read part after part, each text between the tokens that say where it begins and ends. Of who said what
it is told nothing: the published model knows no roles. The VAE is not loaded.
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
    """Answers a conversation. `weights` is a folder in the layout of its hub, or `hub:` and a name."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.vision_encoder, self.lm = (
            Processor(self.checkpoint),
            VisionEncoder(self.checkpoint),
            MixtureLM(self.checkpoint),
        )

    @walk
    def read(self, text: str, main: KV) -> None:
        """Read a text."""
        self.lm.hidden_states(self.processor.tokenize(text), main)

    @walk
    def read_image(self, image: ImageInput, main: KV) -> None:
        """Look at a picture."""
        self.lm.read_image(self.vision_encoder.encode(self.processor.vit_pixels(image)), main)

    @walk
    def answer(self, sampling: Sampling, main: KV) -> Generator[Text, None, Finish]:
        """Write what follows."""
        return self.lm.finish((yield from self.write(sampling, main)), main, sampling)

    def write(self, sampling: Sampling, main: KV) -> Generator[Text, None, Tensor]:
        """A text, and the token at which it ended."""
        first = self.lm.next_token(self.processor.start_token(), main, sampling)
        s = loop(steps=choose(self.lm.is_over(first, main, sampling), 0, sampling.max_tokens), token=first)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, main, sampling)
            s.stop_when(self.lm.is_over(s.token, main, sampling))
        return s.token

    async def route(self, request: ChatRequest) -> Finish:
        """Answer."""
        main = self.lm.kv()
        for part in (part for turn in request.messages for part in turn.parts):
            await (self.read_image(part, main) if isinstance(part, ImageInput) else self.read(str(part), main))
        return await self.answer(request.sampling, main)

    def input_types(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str, ImageInput)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Tokens of its answers as text."""
        return self.lm.detokenize(tokens)
