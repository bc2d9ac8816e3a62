"""A language model whose tokens are words: where its texts end, and how they are spelled."""

import pytest
import torch
from tokenizers import Tokenizer, models
from tokenizers.decoders import Fuse

from mstar.nn.chooser import Chooser
from mstar.nn.pages import Pool
from mstar.nn.sampling import Sampling
from mstar.nn.store import PagedKV, Store
from mstar.nn.text_lm import TextLM

LETTERS = [chr(ord("!") + number) for number in range(90)]
END = LETTERS.index("z")


@pytest.fixture(scope="module")
def lm():
    words = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(LETTERS)}, unk_token="!"))
    words.decoder = Fuse()
    return TextLM(lambda: pytest.fail("no network is needed"), tokenizer=lambda: words, end="z")


def test_its_end_and_its_words_are_the_tokenizers(lm):
    assert lm.end == END
    assert lm.spell([0, 1, 32]) == '!"A'
    assert bool(lm.is_end(torch.tensor([END])))
    assert not bool(lm.is_end(torch.tensor([END - 1])))


def test_a_text_ends_with_a_token_or_a_text(lm):
    wish, kv = Sampling(stop=(7,), stop_texts=("ABC", "E")), PagedKV(Store(Pool(4, 4), 1, swap=0), Chooser())

    def over_after(text, token=9):
        kv.read([LETTERS.index(letter) for letter in text])
        return bool(lm.is_over(torch.tensor([token]), kv, wish))

    kv.read([LETTERS.index("E")])
    kv.chooser.begin()
    assert not over_after("AB"), "what was asked does not count"
    assert over_after("", END)
    assert over_after("", 7)
    assert over_after("C")
    assert not over_after("DDD"), "it went on since"
    assert over_after("E")
    assert not bool(lm.is_over(torch.tensor([9]), kv, Sampling()))
