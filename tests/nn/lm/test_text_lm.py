"""A language model whose tokens are words: where its texts end, and how they are spelled."""

import pytest
import torch
from tokenizers import Tokenizer, models
from tokenizers.decoders import Fuse

from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.lm.text_lm import TextLM
from mstar.requests import Sampling

LETTERS = [chr(ord("!") + number) for number in range(90)]
END = LETTERS.index("z")


class Words(TextLM):
    """A language model that is used without its network."""

    def prepare(self):
        pass


@pytest.fixture(scope="module")
def lm():
    words = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(LETTERS)}, unk_token="!"))
    words.decoder = Fuse()
    return Words(lambda: pytest.fail("no network is needed"), tokenizer=lambda: words, eos_token="z")


def test_its_end_and_its_words_are_the_tokenizers(lm):
    assert lm.eos_token_id == END
    assert lm.detokenize([0, 1, 32]) == '!"A'
    assert bool(lm.is_end(torch.tensor([END])))
    assert not bool(lm.is_end(torch.tensor([END - 1])))


def test_a_text_ends_with_a_token_or_a_text(lm):
    params, kv = (
        Sampling(stop_token_ids=(7,), stop_strings=("ABC", "E")),
        PagedKV(KVStore(PagePool(4, 4), 1, swap_bytes=0), SamplerState()),
    )

    def over_after(text, token=9):
        kv.append_tokens([LETTERS.index(letter) for letter in text])
        return bool(lm.is_over(torch.tensor([token]), kv, params))

    kv.append_tokens([LETTERS.index("E")])
    kv.sampler.start_generation()
    assert not over_after("AB"), "what was asked does not count"
    assert over_after("", END)
    assert over_after("", 7)
    assert over_after("C")
    assert not over_after("DDD"), "it went on since"
    assert over_after("E")
    assert not bool(lm.is_over(torch.tensor([9]), kv, Sampling()))
