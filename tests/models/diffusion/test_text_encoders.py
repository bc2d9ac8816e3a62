"""The embedding cache of text encoders with several outputs per text, without a network."""

import torch

from mstar.models.diffusion.text_encoders import ClipTextEncoder
from mstar.nn.encoder import ContentCache, TenantState


class CountingClip(ClipTextEncoder):
    """Embeddings that depend on the text. The first output has 40 bytes, the second 10."""

    def __init__(self, cache_bytes: int) -> None:
        self.cache = ContentCache(cache_bytes)
        self.encoded: list[str] = []

    def _run_network(self, texts):
        self.encoded += texts
        values = torch.tensor([[ord(text)] for text in texts], dtype=torch.uint8)
        return values.repeat(1, 40), values.repeat(1, 10) + 1


def encode(encoder, text):
    return encoder._encode([[text]], [TenantState()])


def test_a_text_that_lost_one_of_its_outputs_is_encoded_again_and_counted_once():
    encoder = CountingClip(100)
    encode(encoder, "a")
    encoder.cache.put(b"other", torch.zeros(60, dtype=torch.uint8))  # evicts the first output of "a", not the second
    assert encoder.cache.size_bytes == 70
    (hidden,), (pooled,) = encode(encoder, "a")
    assert encoder.encoded == ["a", "a"]
    assert (hidden.unique().tolist(), pooled.unique().tolist()) == ([ord("a")], [ord("a") + 1])
    assert encoder.cache.size_bytes == 50, "both outputs of the text, without the other entry"


def test_the_cache_does_not_shrink_over_many_evictions():
    encoder = CountingClip(170)
    for round_number in range(50):
        for text in "abcdefg"[round_number % 3 :]:
            encode(encoder, text)
        assert encoder.cache.size_bytes == sum(entry.nbytes for entry in encoder.cache._entries.values())
    assert encoder.cache.size_bytes > 170 - 40
