"""The writer of SmolVLM: a language model that goes on with a conversation in which pictures are shown.

Its layers are transformers' own. What is seen of a picture stands in its prompt as embeddings, numbered by their
content, so that questions about one picture share what was read of it.
"""

from __future__ import annotations

from mstar import KV, Float, Int64, Tensor, View, op
from mstar.models.smolvlm.checkpoint import Checkpoint
from mstar.nn.lm.text_lm import TextLM
from mstar.requests import Finish, Sampling


class LanguageModel(TextLM):
    """The language model and its words."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        network, words = (lambda: checkpoint.network("lm")), (lambda: checkpoint.tokenizer)
        super().__init__(network, tokenizer=words, eos_token="<end_of_utterance>")
        self._checkpoint = checkpoint

    @op
    def merge_embeddings(
        self, tokens: Int64[Tensor, "T"], image_embeddings: list[Float[Tensor, "P D"]]
    ) -> tuple[Int64[Tensor, "T"], Float[Tensor, "T D"]]:
        """A prompt as embeddings with what was seen in its places, and the numbers of all of them."""
        import torch

        from mstar.nn.encoder import hash_embeddings

        places, shown = tokens == self._checkpoint.config.image_token_id, torch.cat(image_embeddings)
        numbers, given = tokens.clone(), self.decoder.embed(tokens)
        numbers[places], given[places] = hash_embeddings(shown), shown
        return numbers, given

    @op
    def finish(
        self, tokens: Int64[Tensor, "T"], last_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling
    ) -> Finish:
        """How an answer ended that would have gone on with this token."""
        image = int((tokens == self._checkpoint.config.image_token_id).sum())
        read = {"text": len(tokens) - image} | ({"image": image} if image else {})
        return Finish("stop" if self.is_finished(int(last_token), kv, sampling) else "length", read)
