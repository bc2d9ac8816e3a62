"""Language model of SmolVLM: reads text and image embeddings, and writes text.

The layers are those of transformers. Image embeddings stand in the prompt under ids that hash their content, so that
questions about the same image share its prefix cache.
"""

from __future__ import annotations

from mstar import KV, Float, Int64, Tensor, View, op
from mstar.models.smolvlm.checkpoint import Checkpoint
from mstar.nn.encoder import place_embeddings
from mstar.nn.lm.text_lm import TextLM
from mstar.requests import Finish, Sampling


class LanguageModel(TextLM):
    """Language model with its tokenizer."""

    supported_settings = ()

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(
            lambda: checkpoint.network("lm"), tokenizer=lambda: checkpoint.tokenizer, eos_token="<end_of_utterance>"
        )
        self._checkpoint = checkpoint

    @op
    def merge_embeddings(
        self, tokens: Int64[Tensor, "T"], image_embeddings: list[Float[Tensor, "P D"]]
    ) -> tuple[Int64[Tensor, "T"], Float[Tensor, "T D"]]:
        """Embed a prompt with its images. Returns the ids, with content hashes for images, and the embeddings."""
        is_image = tokens == self._checkpoint.config.image_token_id
        return place_embeddings(tokens, self.decoder.embed(tokens), is_image, image_embeddings)

    @op
    def finish(
        self, tokens: Int64[Tensor, "T"], last_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling
    ) -> Finish:
        """Return the finish reason, and the prompt tokens by modality."""
        image = int((tokens == self._checkpoint.config.image_token_id).sum())
        usage = {"text": len(tokens) - image} | ({"image": image} if image else {})
        return self.make_finish(last_token, kv, sampling, usage)
