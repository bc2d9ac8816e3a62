"""The writer of SmolVLM: a language model that goes on with a conversation in which pictures are shown.

Its layers are transformers' own. What is seen of a picture stands in its prompt as embeddings, numbered by their
content, so that questions about one picture share what was read of it.
"""

from __future__ import annotations

from mstar import KV, Float, Int64, Tensor, View, op
from mstar.asks import Ending
from mstar.models.smolvlm.checkpoint import Checkpoint
from mstar.nn.sampling import Sampling
from mstar.nn.text_lm import TextLM


class Writer(TextLM):
    """The language model and its words."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        network, words = (lambda: checkpoint.network("writer")), (lambda: checkpoint.tokenizer)
        super().__init__(network, tokenizer=words, end="<end_of_utterance>")
        self._checkpoint = checkpoint

    @op
    def join(
        self, tokens: Int64[Tensor, "T"], seen: list[Float[Tensor, "P D"]]
    ) -> tuple[Int64[Tensor, "T"], Float[Tensor, "T D"]]:
        """A prompt as embeddings with what was seen in its places, and the numbers of all of them."""
        import torch

        from mstar.nn.encoder import numbered

        places, shown = tokens == self._checkpoint.config.image_token_id, torch.cat(seen)
        numbers, given = tokens.clone(), self.decoder.embed(tokens)
        numbers[places], given[places] = numbered(shown), shown
        return numbers, given

    @op
    def ending(self, tokens: Int64[Tensor, "T"], last: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling) -> Ending:
        """How an answer ended that would have gone on with this token."""
        image = int((tokens == self._checkpoint.config.image_token_id).sum())
        read = {"text": len(tokens) - image} | ({"image": image} if image else {})
        return Ending("stop" if self.ends(int(last), kv, sampling) else "length", read)
