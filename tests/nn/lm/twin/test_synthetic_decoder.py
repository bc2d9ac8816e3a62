"""The decoder of a twin: it repeats a text, ends it, and counts the pages of a real KV cache."""

import gc

import pytest
import torch

from mstar.errors import NeverFits, OutOfPages, RowsFailed
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.sampler import compute_logprobs
from mstar.nn.lm.twin.synthetic_decoder import SyntheticDecoder
from mstar.requests import Sampling
from mstar.walk.batching import Layout

END = 9
TEXT = (3, 4, 5)
SHORT = Sampling(max_tokens=4)


def make_decoder(pages=8, output_tokens=5):
    return SyntheticDecoder(
        PagePool(pages, 4),
        text=TEXT,
        end_tokens=(END,),
        vocabulary_size=10,
        grammar_tokens=(),
        output_tokens=output_tokens,
    )


def read(decoder, cache, tokens, sampling=SHORT):
    sampled, logits = decoder.next_token(torch.tensor(tokens), [cache], [sampling], Layout(1, (len(tokens),)))
    return int(sampled), logits


def answer(decoder, prompt, sampling=SHORT):
    cache = decoder.new_cache(None)
    tokens = [read(decoder, cache, prompt, sampling)[0]]
    while tokens[-1] != END:
        tokens.append(read(decoder, cache, tokens[-1:], sampling)[0])
    return tokens


def test_an_answer_repeats_the_text_and_ends():
    assert answer(make_decoder(), [1, 1, 1]) == [3, 4, 5, 3, 4, END]


def test_log_probabilities_biases_and_ranges_are_those_of_the_sampler():
    decoder, params = make_decoder(), Sampling(max_tokens=4, logprobs=2)
    token, logits = read(decoder, decoder.new_cache(None), [1], params)
    (logprobs,) = compute_logprobs(logits, [params], torch.tensor([[token]]))
    assert token == 3
    assert logprobs.token_logprob == pytest.approx(0, abs=0.01)
    biased = Sampling(max_tokens=4, logit_bias=((7, 100.0),))
    assert read(decoder, decoder.new_cache(None), [1], biased)[0] == 7
    within = Sampling(max_tokens=4, allowed_ranges=((6, 8),))
    assert read(decoder, decoder.new_cache(None), [1], within)[0] == 6


def test_rows_with_more_chunks_to_read_sample_nothing():
    decoder = make_decoder()
    caches = [decoder.new_cache(None), decoder.new_cache(None)]
    layout = Layout(2, (2, 1), frozenset({0}))
    sampled, _ = decoder.next_token(torch.tensor([1, 1, 1]), caches, [SHORT, SHORT], layout)
    assert sampled[:, 0].tolist() == [0, 3]
    assert caches[0].sampler.prompt_length is None


def test_pages_are_used_shared_by_forks_evicted_and_freed():
    decoder = make_decoder()
    cache = decoder.new_cache(None)
    read(decoder, cache, [1] * 8)
    fork = cache.fork()
    assert decoder.store.page_counts() == (2, 8)
    read(decoder, fork, [1])
    assert decoder.store.page_counts() == (3, 8)
    fork.evict()
    assert (fork.is_resident, decoder.store.page_counts()) == (False, (2, 8))
    decoder.restore([fork])
    assert (fork.is_resident, fork.table.length, decoder.store.page_counts()) == (True, 9, (5, 8))
    snapshot = cache.snapshot()
    read(decoder, cache, [1])
    cache.rollback(snapshot)
    assert (len(cache.sampler.history), cache.table.length) == (8, 8)
    del cache, fork
    gc.collect()
    assert decoder.store.page_counts() == (0, 8)
    decoder.store.pool.check()


def test_an_exported_cache_continues_at_another_worker():
    first, second = make_decoder(), make_decoder()
    cache, moved = first.new_cache(None), second.new_cache(None)
    token, _ = read(first, cache, [1, 1])
    moved.load(cache.export())
    assert read(second, moved, [token])[0] == read(first, cache, [token])[0] == 4
    assert second.store.page_counts() == first.store.page_counts()


def test_memory_ends_as_that_of_a_real_cache():
    decoder = make_decoder(pages=3)
    cache, other = decoder.new_cache(None), decoder.new_cache(None)
    read(decoder, cache, [1] * 8)
    with pytest.raises(OutOfPages, match="out of KV cache pages: 2 pages of 4"):
        read(decoder, other, [1] * 5)
    assert (len(other.sampler.history), other.table.length) == (0, 0)
    with pytest.raises(RowsFailed) as failed:
        read(decoder, other, [1] * 12)
    assert isinstance(failed.value.errors[0], NeverFits)
