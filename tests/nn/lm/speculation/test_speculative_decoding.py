"""Speculative decoding: tokens are those without it, whatever is drafted, and wrong drafts leave nothing behind."""

import gc

import pytest
import torch

from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone
from mstar.errors import LoadError, NotFinite, RowsFailed
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.speculation import speculative_decoding
from mstar.nn.lm.speculation.speculative_decoding import SpeculativeDecoding
from mstar.nn.lm.speculation.step_costs import StepCosts
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.nn.ranks import Rank
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV
from tests.nn.lm.concurrent_requests import ConcurrentRequests, make_component, prompts, reference_tokens
from tests.nn.lm.model_families import new_network

NEW = 24
PARAMS = [
    Sampling(max_tokens=NEW),
    Sampling(max_tokens=NEW, temperature=0.7, seed=1),
    Sampling(max_tokens=NEW, temperature=0.3, top_k=5, seed=2),
    Sampling(max_tokens=NEW, temperature=0.9, min_p=0.1, repetition_penalty=1.1, seed=4),
    Sampling(max_tokens=NEW, repetition_penalty=1.05),
]
FAMILIES = ("llama", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("qwen3", "gemma3", "gpt2", "phi")))


class FreePositions(StepCosts):
    """Costs with which every draft is verified, so that right and wrong ones are many."""

    def __init__(self):
        super().__init__(1.0, 0.0, 1.0)

    def learn(self, positions, context, seconds):
        """Nothing."""


@pytest.fixture
def all_drafts(monkeypatch):
    monkeypatch.setattr(SpeculativeDecoding, "_measure", lambda self: FreePositions())


@pytest.fixture
def random_drafts(monkeypatch, all_drafts):
    """Drafts of which nearly all tokens are wrong."""

    def look_up(history, count):
        return [(int(token) * 7 + len(history)) % 90 for token in history[-count:]]

    monkeypatch.setattr(speculative_decoding, "look_up", look_up)


def make(family="llama", **sizes):
    made = make_component(family, speculative_tokens=6, **sizes)
    made.prepare()
    return made


def repeating(count):
    """Prompts that say something twice, and others."""
    plain = prompts(count)
    return [prompt if row % 3 == 2 else torch.cat([prompt[:20], prompt[:20]]) for row, prompt in enumerate(plain)]


def make_requests(count):
    return [(prompt, PARAMS[row % len(PARAMS)]) for row, prompt in enumerate(repeating(count))]


def serve_all(family, requests):
    """They join and leave at random, are read in chunks, forked, and evicted by a copy or by a computation."""
    lm = make(family)
    yield lm, ConcurrentRequests(lm, 1).serve(requests)
    lm = make(family)
    yield lm, ConcurrentRequests(lm, 2, token_budget=20).serve(requests)
    lm = make(family)
    yield lm, ConcurrentRequests(lm, 3, token_budget=30).serve(requests, forks=8)
    lm = make(family)
    yield lm, ConcurrentRequests(lm, 4).serve(requests, evictions=0.1)
    lm = make(family, swap_bytes=0)
    yield lm, ConcurrentRequests(lm, 5).serve(requests, evictions=0.1)


def check_pages(lm, *alive):
    """Nothing but these caches and their drafts has pages."""
    gc.collect()
    pool = lm.decoder.store.pool
    pool.check()
    drafts = [cache.guess.step for cache in alive if cache.guess.step is not None]
    used = {
        page for table in (*(cache.table for cache in alive), *(one._held for one in drafts)) for page in table.pages
    }
    assert pool.count - pool.free_pages == len(used)


@pytest.mark.parametrize("family", FAMILIES)
def test_requests_write_what_the_library_writes(family, all_drafts):
    requests = make_requests(12)
    right = [reference_tokens(family, prompt, params) for prompt, params in requests]
    for lm, written in serve_all(family, requests):
        assert written == right
        stats = lm.memory_stats()
        assert stats["draft_tokens"] > stats["draft_tokens_accepted"] > 20
        check_pages(lm)


def test_wrong_drafts_change_nothing(random_drafts):
    requests = make_requests(12)
    right = [reference_tokens("llama", prompt, params) for prompt, params in requests]
    for lm, written in serve_all("llama", requests):
        assert written == right
        stats = lm.memory_stats()
        assert stats["draft_tokens"] > 5 * stats["draft_tokens_accepted"]
        check_pages(lm)


def test_measured_costs_decide_what_is_drafted():
    requests = make_requests(6)
    lm = make()
    written = ConcurrentRequests(lm, 1, largest=2).serve(requests)
    assert written == [reference_tokens("llama", prompt, params) for prompt, params in requests]


@pytest.mark.parametrize("count", [1, 4, 16])
def test_steps_of_a_batch_take_no_longer_than_without_drafts(count, monkeypatch):
    """In the time that forwards of a small network take on a CPU. All rows of a step get their tokens together."""
    lm, costs, seconds = make(pages=512), StepCosts(25.0, 1.35, 0.0001), []
    monkeypatch.setattr(costs, "learn", lambda *_: None)
    speculation = lm.decoder.speculation
    speculation._costs, run = costs, speculation._run

    def timed(embeddings, batch, last):
        seconds.append(costs.seconds(len(embeddings), sum(cache.table.length for cache in batch.caches)))
        return run(embeddings, batch, last)

    monkeypatch.setattr(speculation, "_run", timed)
    many, plain = [Sampling(max_tokens=NEW * 2)] * count, 0.0
    given = [torch.cat([prompt[:20]] * 2) for prompt in prompts(count + 3)[3:]]
    caches = [lm.make_state(KV) for _ in given]
    tokens = step(lm, given, caches, many)[0]
    for _ in range(NEW * 2 - 1):
        tokens = step(lm, list(tokens), caches, many)[0]
        plain += costs.seconds(count, sum(cache.table.length for cache in caches))
    assert sum(seconds) <= plain * (1.0 if count > 1 else 0.9)


# ---------------------------------------------------------------- step by step
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14] * 3
GREEDY = Sampling(max_tokens=60)


@pytest.fixture
def lm(all_drafts):
    return make()


def step(lm, tokens, caches, params=None):
    lengths = tuple(map(len, tokens))
    given = torch.cat([torch.as_tensor(part) for part in tokens])
    return lm.decoder.next_token(given, caches, params or [GREEDY] * len(caches), Layout(len(caches), lengths))


def plain_step(lm, tokens, caches, params=None):
    """The same without speculation."""
    lengths = tuple(map(len, tokens))
    given = torch.cat([torch.as_tensor(part) for part in tokens])
    layout = Layout(len(caches), lengths)
    return lm.decoder.next_token_with_hidden(given, caches, params or [GREEDY] * len(caches), layout)[:2]


def with_draft(lm):
    """A cache with a draft that goes on with the returned token, and a copy without one."""
    cache, copy = lm.make_state(KV), lm.make_state(KV)
    (token,), (same,) = step(lm, [PROMPT], [cache])[0], plain_step(lm, [PROMPT], [copy])[0]
    for _ in range(40):
        assert torch.equal(token, same)
        if cache.guess.step is not None:
            return cache, copy, token
        (token,), (same,) = step(lm, [token], [cache])[0], plain_step(lm, [token], [copy])[0]
    raise AssertionError("no token of a draft was right")


def test_an_accepted_token_needs_no_forward(lm, monkeypatch):
    cache, copy, token = with_draft(lm)
    calls = []
    original = lm.decoder.speculation._run
    monkeypatch.setattr(lm.decoder.speculation, "_run", lambda *given: calls.append(1) or original(*given))
    (following,), logits = step(lm, [token], [cache])
    assert not calls
    (expected,), expected_logits = plain_step(lm, [token], [copy])
    assert torch.equal(following, expected)
    torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
    assert cache.table.length == copy.table.length
    assert cache.sampler.snapshot() == copy.sampler.snapshot()


def test_a_walk_can_feed_back_another_token(lm):
    cache, copy, token = with_draft(lm)
    other = (token + 1) % 90
    assert torch.equal(step(lm, [other], [cache])[0], plain_step(lm, [other], [copy])[0])
    check_pages(lm, cache, copy)


@pytest.mark.parametrize("change", ["fork", "evict", "rollback", "prompt", "free"])
def test_what_changes_a_cache_drops_its_draft(lm, change):
    cache, copy, token = with_draft(lm)
    before = lm.decoder.store.pool.free_pages + len(cache.guess.step._held.pages)
    if change == "fork":
        fork = cache.fork()
        assert torch.equal(step(lm, [token], [fork])[0], plain_step(lm, [token], [copy])[0])
        cache = fork
    elif change == "evict":
        cache.evict()
        lm.restore([cache])
    elif change == "rollback":
        cache.rollback(cache.snapshot())
    elif change == "prompt":
        more = [int(token), 3, 4]
        assert torch.equal(step(lm, [more], [cache])[0], plain_step(lm, [more], [copy])[0])
    else:
        cache.free()
        assert lm.decoder.store.pool.free_pages > before
    if change in {"evict", "rollback"}:
        assert cache.guess.step is None
        assert torch.equal(step(lm, [token], [cache])[0], plain_step(lm, [token], [copy])[0])
    gc.collect()
    lm.decoder.store.pool.check()


def test_the_pages_of_a_dead_cache_are_free(lm):
    cache, copy, _ = with_draft(lm)
    del cache
    check_pages(lm, copy)


def test_a_row_that_fails_is_named_beside_accepted_ones(lm):
    cache, copy, token = with_draft(lm)
    snapshot = cache.snapshot()
    with torch.inference_mode():
        cache.guess.step._logits[0, 0] = float("nan")
    other = lm.make_state(KV)
    with pytest.raises(RowsFailed) as failed:
        step(lm, [[3, 4, 5], token], [other, cache])
    assert {row: type(error) for row, error in failed.value.errors.items()} == {1: NotFinite}
    cache.rollback(snapshot)
    assert torch.equal(step(lm, [token], [cache])[0], plain_step(lm, [token], [copy])[0])


def test_without_room_for_a_draft_the_token_is_computed(all_drafts):
    """The last free page is filled by the tokens of the request itself."""
    lm = make(pages=9)
    cache = lm.make_state(KV)
    limited = [Sampling(max_tokens=6)]
    token = step(lm, [PROMPT], [cache], limited)[0][0]
    for _ in range(5):
        token = step(lm, [token], [cache], limited)[0][0]
    expected = reference_tokens("llama", torch.tensor(PROMPT), limited[0])
    assert [*cache.sampler.history[len(PROMPT) :], int(token)] == expected


def test_logprobs_of_accepted_tokens(lm):
    """`next_token_scored` returns what it returns without speculation."""
    cache, copy, token = with_draft(lm)
    first, scored = run_scored(lm, token, cache)
    assert lm.decoder.speculation.accepted
    lm.decoder.speculation = None
    second, expected = run_scored(lm, token, copy)
    assert first == second
    assert [token for token, _ in scored.top_logprobs] == [token for token, _ in expected.top_logprobs]
    assert scored.token_logprob == pytest.approx(expected.token_logprob, abs=1e-4)


def run_scored(lm, token, cache):
    job = Job({"tokens": token, "kv": cache, "sampling": Sampling(max_tokens=60, logprobs=3)})
    (result,) = Engine().run(lm, lm.ops()["next_token_scored"], [job])
    assert isinstance(result, JobDone), result
    return int(result.values[0]), result.values[1]


def test_a_request_whose_drafts_are_wrong_stops_drafting_and_starts_when_they_would_be_right(lm, monkeypatch):
    """What is not verified is compared with the next token too."""
    lm.decoder.speculation._costs = costs = StepCosts(1.0, 0.25)
    monkeypatch.setattr(costs, "learn", lambda *_: None)
    cache, copy, many = lm.make_state(KV), lm.make_state(KV), [Sampling(max_tokens=300)]
    token, drafted = step(lm, [PROMPT], [cache], many)[0][0], []
    plain_step(lm, [PROMPT], [copy], many)
    is_right = False

    def look_up(history, count):
        (following,) = plain_step(lm, [history[-1:]], [copy], many)[0]
        return [int(following) if is_right else (int(following) + 1) % 90]

    monkeypatch.setattr(speculative_decoding, "look_up", look_up)
    for number in range(80):
        is_right = number >= 40
        before = lm.decoder.speculation.drafted
        if lm.decoder.speculation._draft(cache, int(token)) is not None:
            plain_step(lm, [token], [copy], many)  # nothing is looked up
        token = step(lm, [token], [cache], many)[0][0]
        drafted.append(lm.decoder.speculation.drafted - before)
    assert drafted[0] > 0
    assert not any(drafted[10:40])
    assert sum(drafted[60:]) >= 9


# ---------------------------------------------------------------- what it is refused for
def test_a_device_launches_its_steps_ahead_instead():
    lm = CausalLM(lambda: new_network("llama").to(pretend_gpu()), eos_token_id=2, speculative_tokens=4)
    lm.name = "lm"
    with pytest.raises(LoadError, match="launched ahead"):
        lm.prepare()


@pytest.mark.parametrize(("family", "reason"), [("mistral", "sliding window"), ("lfm2", "recurrent")])
def test_networks_whose_drafts_cannot_be_undone_are_refused(family, reason):
    lm = make_component(family, speculative_tokens=4)
    with pytest.raises(LoadError, match=reason):
        lm.prepare()


def test_ranks_are_refused():
    lm = make_component("llama")
    lm.prepare()
    lm.decoder.store.rank = Rank(0, 2)
    with pytest.raises(LoadError, match="different costs"):
        SpeculativeDecoding(lm.decoder, lm.decoder._run, 4)


@pytest.mark.parametrize("text", ["", "many", "-1", "2.5"])
def test_a_setting_that_is_no_number_is_refused(text):
    lm = make_component("llama")
    lm.operator_settings = {"speculative_tokens": text}
    with pytest.raises(LoadError, match=r'set it to a number of tokens, such as "8"'):
        lm.prepare()


def test_the_setting_of_a_placement_enables_it():
    lm = make_component("llama")
    lm.operator_settings = {"speculative_tokens": "5"}
    lm.prepare()
    assert lm.decoder.speculation is not None


def test_without_a_setting_nothing_is_drafted():
    lm = make_component("llama")
    lm.prepare()
    assert lm.decoder.speculation is None
    assert "draft_tokens" not in lm.memory_stats()
