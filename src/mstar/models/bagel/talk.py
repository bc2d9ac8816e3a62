"""BAGEL where nobody draws: it reads texts and pictures, and writes what follows.

A conversation is read part after part, each text between the tokens that say where it begins and ends. Of who said what
it is told nothing: the published model knows no roles. The VAE is not loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from mstar import KV, Model, Tensor, Text, choose, loop, walk
from mstar.asks import Chat, Ending, Picture
from mstar.models.bagel.checkpoint import PUBLISHED, Checkpoint
from mstar.models.bagel.eye import Eye
from mstar.models.bagel.lm import MixtureLM
from mstar.models.bagel.reader import Reader
from mstar.nn.sampling import Sampling


class BagelTalk(Model):
    """Answers a conversation. `weights` is a folder in the layout of its hub, or `hub:` and a name."""

    def __init__(self, weights: str = PUBLISHED) -> None:
        self.checkpoint = Checkpoint(weights)
        self.reader, self.eye, self.lm = Reader(self.checkpoint), Eye(self.checkpoint), MixtureLM(self.checkpoint)

    @walk
    def read(self, text: str, main: KV) -> None:
        """Read a text."""
        self.lm.read(self.reader.tokens(text), main)

    @walk
    def see(self, picture: Picture, main: KV) -> None:
        """Look at a picture."""
        self.lm.see(self.eye.see(self.reader.sight(picture)), main)

    @walk
    def answer(self, sampling: Sampling, main: KV) -> Generator[Text, None, Ending]:
        """Write what follows."""
        return self.lm.ending((yield from self.write(sampling, main)), main, sampling)

    def write(self, sampling: Sampling, main: KV) -> Generator[Text, None, Tensor]:
        """A text, and the token at which it ended."""
        first = self.lm.next(self.reader.beginning(), main, sampling)
        s = loop(steps=choose(self.lm.is_over(first, main, sampling), 0, sampling.max_tokens), token=first)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next(s.token, main, sampling)
            s.stop_when(self.lm.is_over(s.token, main, sampling))
        return s.token

    async def route(self, request: Chat) -> Ending:
        """Answer."""
        main = self.lm.kv()
        for part in (part for turn in request.turns for part in turn.parts):
            await (self.see(part, main) if isinstance(part, Picture) else self.read(str(part), main))
        return await self.answer(request.sampling, main)

    def reads(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str, Picture)

    def spell(self, tokens: Sequence[int], /) -> str:
        """Tokens of its answers as text."""
        return self.lm.spell(tokens)
