"""A language model whose tokens are words: where its texts end, and how they are spelled."""

import pytest
import torch
from tokenizers import Tokenizer, models
from tokenizers.decoders import Fuse

from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, Unfinished
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.lm.text_lm import TextLM
from mstar.requests import Sampling
from mstar.walk.states import KV
from tests.nn.lm.model_families import new_network

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
        kv.sampler.append_tokens([LETTERS.index(letter) for letter in text])
        return bool(lm.is_over(torch.tensor([token]), kv, params))

    kv.sampler.append_tokens([LETTERS.index("E")])
    kv.sampler.start_generation()
    assert not over_after("AB"), "what was asked does not count"
    assert over_after("", END)
    assert over_after("", 7)
    assert over_after("C")
    assert not over_after("DDD"), "it went on since"
    assert over_after("E")
    assert not bool(lm.is_over(torch.tensor([9]), kv, Sampling()))


@pytest.mark.parametrize("budget", [None, 5])
def test_a_prompt_can_be_appended_in_parts_without_sampling(lm, budget):
    network = new_network("llama")
    reader = Words(lambda: network, tokenizer=lambda: lm.tokenizer, eos_token="z")
    reader.name = "lm"
    engine, params = Engine(max_batched_tokens=budget), Sampling(temperature=0.8, seed=3, presence_penalty=1.0)
    prompt = torch.arange(3, 40)

    def run(op, kv, tokens, **more):
        (result,) = engine.run(reader, reader.ops()[op], [job := Job({"tokens": tokens, "kv": kv, **more})])
        while isinstance(result, Unfinished):
            (result,) = engine.run(reader, reader.ops()[op], [job])
        assert isinstance(result, JobDone), result
        return result.values

    whole, parts = engine.new_state(reader, KV), engine.new_state(reader, KV)
    assert run("append", parts, prompt[:20]) == ()
    assert run("append", parts, prompt[20:-1]) == ()
    assert parts.sampler.prompt_length is None, "nothing was sampled"
    (expected,) = run("next_token", whole, prompt, sampling=params)
    assert torch.equal(run("next_token", parts, prompt[-1:], sampling=params)[0], expected)
