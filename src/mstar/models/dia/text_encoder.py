"""Text encoder of Dia: hidden states of the bytes of a transcript, and those of no text for guidance."""

from __future__ import annotations

from typing import Any

from mstar import Int64, Tensor, op
from mstar.errors import Unsupported
from mstar.models.dia.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder


class TextEncoder(Encoder):
    """Tokenizer and encoder. Its op `text` gives the hidden states of tokens."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.load_encoder, cache_bytes=0)
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the network and the tokenizer."""
        super().prepare()
        _ = self._checkpoint.tokenizer

    @op
    def tokens(self, text: str) -> tuple[Int64[Tensor, "T"], Int64[Tensor, "N"]]:
        """Tokens of a text, and of no text.

        The library replaces each token by 0 where it reads no text. All hidden states are equal then, and attention to
        equal states gives the same for any number of them, so one token is enough.
        """
        import torch

        encoder_config: Any = self._checkpoint.config.encoder_config
        tokens, limit = self._checkpoint.tokenizer(text)["input_ids"], encoder_config.max_position_embeddings
        if not 0 < len(tokens) <= limit:
            problem = f"the text has {len(tokens)} bytes, where a speaker tag is one, expected 1 to {limit}"
            raise Unsupported(f"{problem}\n  fix: split the text into several requests")
        return torch.tensor(tokens), torch.zeros(1, dtype=torch.int64)
