"""The reader of SmolVLM: a conversation as the tokens that its network was trained with, and the pictures in it.

Into how many tiles a picture is cut, and how those are named, are transformers' own rules; it is cut where it is seen.
Turns are put as in its chat template; it is told of no tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from mstar import Component, Int64, Tensor, UInt8, op
from mstar.errors import NeverFits, Unsupported
from mstar.models.smolvlm.checkpoint import Checkpoint
from mstar.requests import ChatRequest, ImageInput, Message

_IMAGE_TOKENS = {"fake_token_around_image": "<fake_token_around_image>", "image_token": "<image>"}
_IMAGE_TOKENS |= {"global_image_token": "<global-img>"}


class Processor(Component):
    """The tokenizer, and the rules by which pictures are cut."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load them."""
        _ = self._checkpoint.tokenizer, self._checkpoint.image_processor

    @op
    def process(self, chat: ChatRequest) -> tuple[Int64[Tensor, "T"], list[UInt8[Tensor, "H W 3"]], int]:
        """A conversation up to where the answer begins, its pictures, and how many tokens the answer may have."""
        import numpy as np
        import torch

        pieces = [
            self._token_id("<|im_start|>"),
            *(piece for turn in chat.messages for piece in self._message_pieces(turn)),
        ]
        tokens = list[int]()
        for is_text, run in groupby([*pieces, "Assistant:"], lambda piece: isinstance(piece, str)):
            said = list[Any](run)
            tokens += self._checkpoint.tokenizer.encode("".join(said)).ids if is_text else said
        longest = self._checkpoint.config.text_config.max_position_embeddings
        if len(tokens) >= longest:
            raise NeverFits(f"the conversation has {len(tokens)} tokens\n  fix: have fewer than {longest}")
        pictures = [part.pixels for turn in chat.messages for part in turn.parts if isinstance(part, ImageInput)]
        shown = [torch.from_numpy(np.ascontiguousarray(one)) for one in pictures]
        return torch.tensor(tokens), shown, min(chat.sampling.max_tokens, longest - len(tokens))

    def _message_pieces(self, message: Message) -> Iterator[str | int]:
        """A turn as texts and special tokens. Words may go from one text to the next."""
        yield f"{message.role.capitalize()}:"
        if not isinstance(next(iter(message.parts), ""), ImageInput):
            yield " "
        for part in message.parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, ImageInput):
                yield from self._image_placeholder(*part.pixels.shape[:2])
            else:
                raise Unsupported(f"it is shown a {type(part).__name__}\n  fix: send text and pictures")
        yield self._token_id("<end_of_utterance>")
        yield "\n"

    def _image_placeholder(self, height: int, width: int) -> list[str | int]:
        """What stands in a text for a picture of this size."""
        from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

        vision = self._checkpoint.config.vision_config
        count = (vision.image_size // vision.patch_size // self._checkpoint.config.scale_factor) ** 2
        _, rows, columns = self._checkpoint.image_processor.get_number_of_image_patches(height, width)
        text = get_image_prompt_string(rows, columns, count, **_IMAGE_TOKENS)
        return [self._token_id(part) if part[0] == "<" else part for part in re.findall(r"<[^>]+>|[^<]+", text)]

    def _token_id(self, name: str) -> int:
        return self._checkpoint.tokenizer.token_to_id(name)
