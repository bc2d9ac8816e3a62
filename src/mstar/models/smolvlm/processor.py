"""SmolVLM processor: a conversation as tokens, and its images.

It applies the chat template without tools. The tile counts and tile markers are those of transformers; the vision
encoder cuts the tiles.
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
    """Tokenizer and image tiling rules."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the tokenizer and the image processor."""
        _ = self._checkpoint.tokenizer, self._checkpoint.image_processor

    @op
    def process(self, chat: ChatRequest) -> tuple[Int64[Tensor, "T"], list[UInt8[Tensor, "H W 3"]], int]:
        """Return the prompt, its images, and the maximum number of tokens of the answer."""
        import numpy as np
        import torch

        pieces = [
            self._token_id("<|im_start|>"),
            *(piece for message in chat.messages for piece in self._message_pieces(message)),
        ]
        tokens = list[int]()
        for is_text, run in groupby([*pieces, "Assistant:"], lambda piece: isinstance(piece, str)):
            items = list[Any](run)
            tokens += self._checkpoint.tokenizer.encode("".join(items)).ids if is_text else items
        max_tokens = self._checkpoint.config.text_config.max_position_embeddings
        if len(tokens) >= max_tokens:
            raise NeverFits(
                f"the conversation has {len(tokens)} tokens, the context holds {max_tokens}\n"
                f"  fix: send fewer than {max_tokens} tokens"
            )
        pixels = [part.pixels for message in chat.messages for part in message.parts if isinstance(part, ImageInput)]
        images = [torch.from_numpy(np.ascontiguousarray(image)) for image in pixels]
        return torch.tensor(tokens), images, min(chat.sampling.max_tokens, max_tokens - len(tokens))

    def _message_pieces(self, message: Message) -> Iterator[str | int]:
        """Yield the texts and special tokens of a message. A word can span two texts."""
        yield f"{message.role.capitalize()}:"
        if not isinstance(next(iter(message.parts), ""), ImageInput):
            yield " "
        for part in message.parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, ImageInput):
                yield from self._image_placeholder(*part.pixels.shape[:2])
            else:
                raise Unsupported(f"unsupported part {type(part).__name__}\n  fix: send text and images")
        yield self._token_id("<end_of_utterance>")
        yield "\n"

    def _image_placeholder(self, height: int, width: int) -> list[str | int]:
        """Return the placeholder of an image of this size."""
        from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

        vision = self._checkpoint.config.vision_config
        count = (vision.image_size // vision.patch_size // self._checkpoint.config.scale_factor) ** 2
        _, rows, columns = self._checkpoint.image_processor.get_number_of_image_patches(height, width)
        text = get_image_prompt_string(rows, columns, count, **_IMAGE_TOKENS)
        return [self._token_id(part) if part[0] == "<" else part for part in re.findall(r"<[^>]+>|[^<]+", text)]

    def _token_id(self, name: str) -> int:
        return self._checkpoint.tokenizer.token_to_id(name)
