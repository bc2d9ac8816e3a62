"""A Whisper as a component writes what the library's generate writes, whatever happens around it.

The reference is `GenerationMixin.generate` on the library's Whisper: plain generate, with the library's own caches.
Whisper's `generate` is not used: it adds rules of its own (suppressed tokens, time stamps, seeking in long sounds).
"""

import functools
import random
import sys
from collections.abc import Iterator

import pytest
import torch
import transformers as t

from mstar import Float32, Int64, Model, Tensor, Text, loop, walk
from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, JobFailed
from mstar.errors import LoadError, OutOfPages
from mstar.nn.compile import graph_capture
from mstar.nn.lm import eager_seq2seq
from mstar.nn.lm.decoder import SlowPath
from mstar.nn.lm.seq2seq import Seq2SeqLM
from mstar.requests import Sampling
from mstar.testing.parity import parity_all
from mstar.walk.batching import Layout
from mstar.walk.states import KV
from tests.nn.lm.concurrent_requests import prompts
from tests.nn.lm.counter_based_generate import counter_based_draws

NEW = 8
ENCODER_FRAMES = 10
"""Positions of what is heard; with pages of 4 the last one is partly full."""
LONGEST = 128
SAMPLING_PARAMS = [
    Sampling(max_tokens=NEW),
    Sampling(max_tokens=NEW, temperature=0.7, seed=1),
    Sampling(max_tokens=NEW, temperature=1.3, top_k=20, top_p=0.8, seed=2),
    Sampling(max_tokens=NEW, temperature=1.0, repetition_penalty=1.4, seed=3),
]
ONE = Sampling(max_tokens=1)
SMALL = {
    "vocab_size": 97,
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 1,  # fewer than the decoder has, as in distilled ones it is the other way round
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": ENCODER_FRAMES,
    "max_target_positions": LONGEST,
    "decoder_start_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def _new_network() -> torch.nn.Module:
    torch.manual_seed(0)
    made = t.WhisperForConditionalGeneration(t.WhisperConfig(**SMALL)).eval()
    for weight in made.parameters():
        if weight.ndim > 1:  # with the library's small weights a token would hardly depend on what is heard and read
            weight.data.normal_(std=2 * weight[0].numel() ** -0.5)
    return made


network, paged = functools.cache(_new_network), functools.cache(_new_network)
_writing_half = functools.cache(eager_seq2seq.DecoderHalf)


@pytest.fixture(autouse=True)
def write_once(monkeypatch):
    """So that what is recorded of a network serves all tests."""
    monkeypatch.setattr(eager_seq2seq, "DecoderHalf", _writing_half)


def component(**sizes) -> Seq2SeqLM:
    lm = Seq2SeqLM(paged, eos_token_id=2, **({"pages": 256, "page_size": 4} | sizes))
    lm.name = "lm"
    return lm


def sound(seed: int) -> torch.Tensor:
    return torch.randn((8, 2 * ENCODER_FRAMES), generator=torch.Generator().manual_seed(seed))


def given(count):
    """Sounds, beginnings of all lengths, every other request greedy; two requests differ in what they hear only."""
    starts = prompts(count)
    starts[4] = starts[3]
    all_params = [
        SAMPLING_PARAMS[row // 2 % len(SAMPLING_PARAMS)] if row % 2 else SAMPLING_PARAMS[0] for row in range(count)
    ]
    all_params[4] = all_params[3]
    return [(sound(row), start, params) for row, (start, params) in enumerate(zip(starts, all_params, strict=True))]


def generated(features, start, params):
    how = {"do_sample": False}
    if params.temperature:
        how = {"do_sample": True, "temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
    how |= {"repetition_penalty": params.repetition_penalty, "max_new_tokens": params.max_tokens, "eos_token_id": -1}
    with counter_based_draws(params.seed):
        made = t.GenerationMixin.generate(network(), features[None], decoder_input_ids=start[None], **how)
    return made[0, len(start) :].tolist()


@functools.cache
def wanted(count):
    return [generated(*request) for request in given(count)]


class Request:
    """One sound being written down: it is encoded, heard, and then read and written token by token."""

    def __init__(self, cache, features, start, params):
        self.cache, self.params = cache, params
        self.written = []
        self.op = "encode"
        self.job = Job({"features": features})
        self._start = start

    @property
    def is_over(self):
        return len(self.written) == self.params.max_tokens

    def give(self, result):
        assert not isinstance(result, JobFailed), result
        if not isinstance(result, JobDone):
            return
        if self.op == "encode":
            self.op, self.job = "write_encoder_states", Job({"states": result.values[0], "kv": self.cache})
            return
        if self.op == "next_token":
            self.written.append(int(result.values[0]))
        self._read(torch.tensor(self.written[-1:]) if self.written else self._start)

    def _read(self, tokens):
        self.op, self.job = "next_token", Job({"tokens": tokens, "kv": self.cache, "sampling": self.params})

    def fork(self, engine):
        twin = Request(engine.fork(self.cache), None, self._start, self.params)
        twin.written = [*self.written]
        twin._read(self.job.arguments["tokens"])
        return twin


def serve(lm, requests, seed, *, token_budget=None, forks=0, leaves=0.0):
    """What each request wrote; chance decides who shares a batch, who is forked and who is pushed out of memory."""
    chosen, engine = random.Random(seed), Engine(max_batched_tokens=token_budget)
    first = [Request(engine.new_state(lm, KV), *request) for request in requests]
    twins: list[tuple[int, Request]] = []
    while waiting := [one for one in (*first, *(twin for _, twin in twins)) if not one.is_over]:
        name = chosen.choice(waiting).op
        able = [one for one in waiting if one.op == name]
        batch = chosen.sample(able, chosen.randint(1, len(able)))
        for one, result in zip(batch, engine.run(lm, lm.ops()[name], [one.job for one in batch]), strict=True):
            one.give(result)
        at = chosen.randrange(len(first))
        if len(twins) < forks and first[at].op == "next_token" and not first[at].job.done:
            twins.append((at, first[at].fork(engine)))
        for one in waiting:
            if one.cache.is_resident and chosen.random() < leaves:
                one.cache.evict()
        lm.decoder.store.pool.check()
    assert len(twins) == forks
    assert all(twin.written == first[at].written for at, twin in twins), "a fork writes what its original does"
    return [one.written for one in first]


def test_audio_and_prompt_both_matter():
    right = wanted(16)
    assert len({tuple(tokens) for tokens in right}) > 12
    assert right[3] != right[4], "these differ in what they hear only"


@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        pytest.param({}, {}, id="joining-and-leaving-at-random"),
        pytest.param({}, {"token_budget": 3}, id="in-pieces"),
        pytest.param({}, {"token_budget": 30, "forks": 8}, id="with-forks"),
        pytest.param({}, {"leaves": 0.1}, id="copied-out-of-memory-and-back"),
        pytest.param({"swap_bytes": 0}, {"leaves": 0.1}, id="dropped-and-made-again"),
        pytest.param({"swap_bytes": 5000}, {"leaves": 0.1, "forks": 4}, id="some-copied-and-some-dropped"),
        pytest.param({"pages": 70}, {"token_budget": 40}, id="with-half-the-memory"),
    ],
)
def test_a_whisper_in_a_crowd_writes_what_generate_writes(sizes, how):
    lm = component(**sizes)
    assert serve(lm, given(16), len(how), **how) == wanted(16)
    assert lm.decoder.store.pool.free_pages == lm.decoder.store.pool.count, "all pages come back"


def test_without_kernels_and_recording_it_writes_the_same(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise NotImplementedError("this is not recorded")

    monkeypatch.setattr(graph_capture, "flatten", refuse)
    lm = Seq2SeqLM(lambda: _new_network().double(), eos_token_id=2, page_size=4)  # there are no kernels for this dtype
    with pytest.warns(SlowPath, match="this is not recorded"):
        lm.kv()
    assert serve(lm, given(6), 1, token_budget=60) == [generated(*request) for request in given(6)]


def encoded_caches(lm, count):
    """Caches that have heard a sound and read nothing."""
    caches = [lm.kv() for _ in range(count)]
    for row, cache in enumerate(caches):
        lm.write_encoder_states(lm.encode(sound(row)), cache)
    return caches


def test_the_same_tokens_after_another_sound_share_no_pages():
    lm = component()
    start = torch.arange(3, 14)
    for row, cache in enumerate(encoded_caches(lm, 2)):
        assert [int(lm.next_token(start, cache, ONE))] == generated(sound(row), start, ONE)


def test_forks_share_cross_attention_and_self_attention_kv():
    lm = component(pages=20)
    pool = lm.decoder.store.pool
    (cache,) = encoded_caches(lm, 1)
    lm.next_token(torch.arange(3, 9), cache, SAMPLING_PARAMS[0])
    assert pool.free_pages == 20 - 3 - 2
    forks = [cache.fork() for _ in range(100)]
    assert pool.free_pages == 20 - 3 - 2
    pool.check()
    cache.free()
    assert [int(lm.next_token(torch.tensor([9]), forks[7], ONE))] == generated(sound(0), torch.arange(3, 10), ONE)
    del forks
    assert pool.free_pages == 20


def test_a_cache_goes_on_in_another_component():
    here, there = component(), component(page_size=8, pages=40)
    (cache,) = encoded_caches(here, 1)
    here.next_token(torch.arange(3, 9), cache, SAMPLING_PARAMS[0])
    moved = there.kv()
    moved.load(cache.export())
    right = generated(sound(0), torch.arange(3, 10), ONE)
    assert [int(there.next_token(torch.tensor([9]), moved, SAMPLING_PARAMS[0]))] == right
    moved.evict()
    there.restore([moved])
    there.decoder.store.pool.check()
    full = component(page_size=8, pages=2).kv()
    with pytest.raises(OutOfPages, match="3 KV cache pages of 8 positions needed"):
        full.load(cache.export())
    assert full.store.pool.free_pages == 2


@pytest.mark.parametrize(("part", "swap_bytes"), [("_write_cross_kv", 0), ("_write_cross_kv", 5000), ("_recompute", 0)])
def test_a_failed_restore_leaves_the_cache_evicted(monkeypatch, part, swap_bytes):
    lm = component(swap_bytes=swap_bytes)
    (cache,) = encoded_caches(lm, 1)
    lm.next_token(torch.arange(3, 9), cache, SAMPLING_PARAMS[0])
    free_pages = lm.decoder.store.pool.free_pages
    cache.evict()

    def fail(*_args):
        raise OutOfPages("no pages")

    with monkeypatch.context() as patch:
        patch.setattr(lm.decoder, part, fail)
        with pytest.raises(OutOfPages, match="no pages"):
            lm.restore([cache])
    assert cache.is_dropped
    assert cache.cross_attention_cache.is_dropped
    lm.restore([cache])
    assert lm.decoder.store.pool.free_pages == free_pages
    right = generated(sound(0), torch.arange(3, 10), ONE)
    assert [int(lm.next_token(torch.tensor([9]), cache, ONE))] == right


def forgetful_cache(lm):
    """A cache that has read six tokens, the last three of them without the first page of encoder positions."""
    (cache,) = encoded_caches(lm, 1)
    lm.next_token(torch.arange(3, 6), cache, SAMPLING_PARAMS[0])
    cache.forget_encoder_states(7)
    lm.next_token(torch.arange(6, 9), cache, SAMPLING_PARAMS[0])
    return cache


def keys_and_values(cache):
    return torch.cat([part._data().view(torch.float32) for part in (cache, cache.cross_attention_cache)])


def test_forgotten_encoder_positions_are_not_read():
    lm = component()
    cache, later, other = (lm.kv() for _ in range(3))
    states = lm.encode(sound(0))
    lm.write_encoder_states(states, cache)
    lm.write_encoder_states(states[4:], later)
    lm.write_encoder_states(states, other)
    free_pages = lm.decoder.store.pool.free_pages
    cache.forget_encoder_states(3)
    assert not cache.forgotten, "less than a page"
    cache.forget_encoder_states(7)
    assert (cache.forgotten, cache.encoder_positions) == (4, ENCODER_FRAMES)
    assert lm.decoder.store.pool.free_pages == free_pages + 1
    tokens = torch.arange(3, 9)
    hidden = [lm.decoder.hidden_states(tokens, [one], Layout(1, (6,))) for one in (cache, later, other)]
    assert torch.equal(hidden[0], hidden[1])
    assert not torch.allclose(hidden[0], hidden[2], atol=1e-3)
    cache.forget_encoder_states(1000)
    assert cache.cross_attention_cache.table.length, "the last page stays"
    lm.decoder.store.pool.check()


@pytest.mark.parametrize("swap_bytes", [0, 1 << 20])
def test_a_forgetful_cache_is_evicted_and_restored(swap_bytes):
    lm = component(swap_bytes=swap_bytes)
    cache = forgetful_cache(lm)
    before = keys_and_values(cache)
    cache.evict()
    assert cache.is_dropped == (not swap_bytes)
    lm.restore([cache])
    assert cache.forgettings == [(3, 4)]
    assert torch.allclose(keys_and_values(cache), before, atol=1e-5)
    lm.decoder.store.pool.check()


def test_a_failed_restore_remembers_what_was_forgotten(monkeypatch):
    lm = component(swap_bytes=0)
    cache = forgetful_cache(lm)
    before = keys_and_values(cache)
    cache.evict()

    def fail(*_args):
        raise OutOfPages("no pages")

    with monkeypatch.context() as patch:
        patch.setattr(lm.decoder, "_append_again", fail)
        with pytest.raises(OutOfPages, match="no pages"):
            lm.restore([cache])
    assert cache.forgettings == [(3, 4)]
    lm.restore([cache])
    assert torch.allclose(keys_and_values(cache), before, atol=1e-5)
    lm.decoder.store.pool.check()


def test_a_forgetful_cache_is_forked_rolled_back_and_moved():
    here, there = component(), component(page_size=8)
    cache = forgetful_cache(here)
    snapshot, forked = cache.snapshot(), cache.fork()
    before = keys_and_values(forked)
    cache.forget_encoder_states(9)
    assert cache.forgotten == 8
    cache.rollback(snapshot)
    assert cache.encoder_positions == ENCODER_FRAMES
    assert torch.equal(keys_and_values(forked), before)
    here.decoder.store.pool.check()
    moved = there.kv()
    moved.load(forked.export())
    tokens = [int(lm.next_token(torch.tensor([9]), one, ONE)) for lm, one in ((here, forked), (there, moved))]
    assert tokens[0] == tokens[1]
    moved.forget_encoder_states(9)
    assert moved.forgotten == 4, "less than a page of eight"


def test_scores_are_computed_from_all_encoder_positions():
    lm = component()
    caches = [forgetful_cache(lm), *encoded_caches(lm, 1)]
    scores = lm.decoder.cross_attention_scores(
        torch.arange(3, 13), caches, [5, 5], [ENCODER_FRAMES] * 2, ((1, 0), (1, 2))
    )
    assert caches[0].forgotten == 4
    lm.decoder.store.pool.check()
    again = encoded_caches(lm, 1)
    expected = lm.decoder.cross_attention_scores(torch.arange(3, 8), again, [5], [ENCODER_FRAMES], ((1, 0), (1, 2)))
    assert torch.allclose(scores[0], expected[0], atol=1e-5)


def run(lm, name, jobs):
    results = Engine().run(lm, lm.ops()[name], [Job(each) for each in jobs])
    return [str(result.error) if isinstance(result, JobFailed) else result.values for result in results]


def test_a_failing_decoder_call_fails_alone():
    lm = component()
    good, full = encoded_caches(lm, 2)
    lm.next_token(torch.full((LONGEST - 3,), 5), full, SAMPLING_PARAMS[0])
    given = [(torch.tensor([3]), good), (torch.tensor([3]), lm.kv()), (torch.tensor([3, 4, 5, 6]), full)]
    jobs = [{"tokens": tokens, "kv": cache, "sampling": SAMPLING_PARAMS[0]} for tokens, cache in given]
    (token,), no_encoder_states, too_long = run(lm, "next_token", jobs)
    assert [int(token)] == generated(sound(0), torch.tensor([3]), ONE)
    assert no_encoder_states == "the KV cache has no encoder states\n  fix: call write_encoder_states first"
    assert too_long.startswith(
        "too many tokens: 125 tokens in the KV cache and 4 more, limit 128\n  fix: set a smaller"
    )
    assert full.table.length == LONGEST - 3


def test_a_failing_encoder_call_fails_alone_and_stores_nothing():
    lm = component(pages=8)
    late, early = encoded_caches(lm, 1)[0], lm.kv()
    lm.next_token(torch.tensor([3]), late, SAMPLING_PARAMS[0])
    large = lm.kv()
    states = lm.encode(sound(1))
    given = [(states, late), (states, early), (states.repeat(4, 1), large)]
    refused, fits, too_much = run(lm, "write_encoder_states", [{"states": each, "kv": cache} for each, cache in given])
    assert refused.startswith("the KV cache already has 1 tokens, so no encoder states can be added\n  fix: write all")
    assert fits == ()
    ((token,),) = run(lm, "next_token", [{"tokens": torch.tensor([3]), "kv": early, "sampling": ONE}])
    assert [int(token)] == generated(sound(1), torch.tensor([3]), ONE)
    assert too_much.startswith("out of KV cache pages: 10 pages of 4 positions needed")
    assert (large.cross_attention_cache.table.length, large.cross_attention_cache.embeddings) == (0, [])
    lm.decoder.store.pool.check()


def test_reading_gives_the_hidden_states_of_the_library():
    lm = component()
    (cache,) = encoded_caches(lm, 1)
    tokens = torch.arange(3, 60)
    with torch.inference_mode():
        right = network().model(sound(0)[None], decoder_input_ids=tokens[None]).last_hidden_state[0]
        torch.testing.assert_close(lm.hidden_states(tokens, cache), right, atol=1e-4, rtol=1e-4)


def test_the_beginning_of_a_window_is_encoded_alone():
    half = t.WhisperForConditionalGeneration(
        t.WhisperConfig(**(SMALL | {"max_source_positions": ENCODER_FRAMES // 2}))
    ).eval()
    tensors = network().state_dict()
    tensors["model.encoder.embed_positions.weight"] = tensors["model.encoder.embed_positions.weight"][
        : ENCODER_FRAMES // 2
    ]
    half.load_state_dict(tensors)
    features, lm = sound(0), component()
    jobs = [Job({"features": part}) for part in (features, features[:, :ENCODER_FRAMES], features)]
    whole, begun, again = (one.values[0] for one in Engine().run(lm, lm.ops()["encode"], jobs))
    with torch.inference_mode():
        right = half.get_encoder()(features[None, :, :ENCODER_FRAMES]).last_hidden_state[0]
        torch.testing.assert_close(begun, right)
        torch.testing.assert_close(whole, network().get_encoder()(features[None]).last_hidden_state[0])
    assert torch.equal(whole, again)
    assert not torch.allclose(begun, whole[: ENCODER_FRAMES // 2], atol=1e-2), "it would also see what follows"


class Transcriber(Model):
    """Writes down what it hears."""

    def __init__(self):
        self.lm = component(pages=128)

    @walk
    def write(self, features: Float32[Tensor, "M F"], start: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Text]:
        kv = self.lm.kv()
        self.lm.write_encoder_states(self.lm.encode(features), kv)
        s = loop(steps=sampling.max_tokens, token=self.lm.next_token(start, kv, sampling))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, sampling)
            s.stop_when(self.lm.is_end(s.token, sampling))


def test_a_walk_is_served_as_it_runs():
    model = Transcriber()
    requests = [{"features": a, "start": b, "sampling": c} for a, b, c in given(6)]
    parity_all(model, requests, schedules=2)
    assert model.lm.decoder.store.pool.free_pages == 128


def test_a_model_file_does_not_load_the_network():
    lm = Seq2SeqLM(lambda: pytest.fail("the network was loaded"), eos_token_id=2)
    assert {"encode", "write_encoder_states", "next_token", "is_end"} <= lm.ops().keys()


def test_without_the_libraries_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mstar.nn.lm.encoder_decoder", None)
    with pytest.raises(LoadError, match=r"needs torch and transformers[\s\S]*fix: install torch"):
        component().kv()


def test_a_decoder_that_counts_its_own_positions_is_refused():
    sizes = {"vocab_size": 97, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 0}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    bart = t.BartForConditionalGeneration(t.BartConfig(**sizes, **heads, bos_token_id=1, eos_token_id=2))
    with pytest.raises(LoadError, match="BartDecoder has no parameter position_ids, so requests cannot be batched"):
        Seq2SeqLM(lambda: bart, eos_token_id=2).kv()
