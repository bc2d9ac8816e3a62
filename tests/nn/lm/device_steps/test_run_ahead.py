"""Run-ahead on the pretend GPU: tokens are the same, wrong guesses leave nothing behind, and the device stays busy."""

import gc
import sys
import time

import pytest
import torch

from mstar.errors import NotFinite, RowsFailed
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.device_steps.run_ahead import AheadStep
from mstar.nn.pretend_clock import with_clock
from mstar.nn.pretend_gpu import count_traffic, pretend_gpu
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV
from tests.nn.lm.concurrent_requests import ConcurrentRequests, prompts, reference_tokens
from tests.nn.lm.model_families import new_network

PAGE_SIZE = 4
FAMILIES = ("llama", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("gemma3", "mistral")))
"""Plain, with sliding windows in some layers and in all layers."""
PARAMS = [
    Sampling(max_tokens=14),
    Sampling(max_tokens=9, temperature=0.8, top_k=20, seed=1),
    Sampling(max_tokens=14, temperature=1.3, top_p=0.9, seed=2),
]
PENALTY = Sampling(max_tokens=10, repetition_penalty=1.3)


def make(family, pages=4000):
    made = CausalLM(lambda: new_network(family).to(pretend_gpu()), eos_token_id=2, pages=pages, page_size=PAGE_SIZE)
    made.name = "lm"
    made.prepare()
    return made


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request):
    return make(request.param)


@pytest.fixture
def confirmed(monkeypatch):
    """Tokens of the guesses that were right."""
    tokens = []
    original = AheadStep.confirm

    def confirm(self, caches):
        tokens.extend(self.tokens[cache.guess.row] for cache in caches)
        original(self, caches)

    monkeypatch.setattr(AheadStep, "confirm", confirm)
    return tokens


def step(lm, tokens, caches, params, unfinished=()):
    layout = Layout(len(caches), tuple(map(len, tokens)), frozenset(unfinished))
    return lm.decoder.ahead.next_tokens(torch.cat(tokens), caches, params, layout)


def plain_step(lm, tokens, caches, params):
    """The same without run-ahead."""
    return lm.decoder.next_token(torch.cat(tokens), caches, params, Layout(len(caches), tuple(map(len, tokens))))[0]


def start(lm, params):
    """Caches of requests with prompts of different lengths, their copies, and their next tokens."""
    caches = [lm.make_state(KV) for _ in params]
    given = [torch.arange(3, 6 + row % 7) for row in range(len(params))]
    sampled = step(lm, given, caches, params)
    copies = [lm.make_state(KV) for _ in params]
    assert torch.equal(plain_step(lm, given, copies, params), sampled)
    return caches, copies, sampled


def check_pages(lm, *alive):
    """Nothing but these caches, their guesses and the scratch page has pages."""
    gc.collect()
    pool = lm.decoder.store.pool
    pool.check()
    steps = {cache.guess.step for cache in alive if cache.guess.step}
    held = [table for each in steps for table in each.reserve.values()]
    tables = [*(cache.table for cache in alive), *held, lm.decoder.steps._scratch.table]
    used = {page for table in tables for page in table.pages[table.forgotten :]}
    assert pool.count - pool.free_pages == len(used)


def test_every_token_after_the_first_was_guessed(lm, confirmed):
    caches, copies, sampled = start(lm, PARAMS)
    for _ in range(8):
        expected = plain_step(lm, [*sampled], copies, PARAMS)
        sampled = step(lm, [*sampled], caches, PARAMS)
        assert torch.equal(sampled, expected)
    assert len(confirmed) == 8 * len(PARAMS)
    check_pages(lm, *caches, *copies)


@pytest.mark.parametrize("stop", range(1, 14))
def test_a_guess_is_undone_at_every_stop(lm, stop):
    """A request of every length ends beside one that goes on; its pages are free, and others take them."""
    params = [Sampling(max_tokens=20), Sampling(max_tokens=20, temperature=1.0, seed=stop)]
    caches, copies, sampled = start(lm, params)
    for _ in range(stop):
        expected = plain_step(lm, [*sampled], copies, params)
        sampled = step(lm, [*sampled], caches, params)
        assert torch.equal(sampled, expected)
    survivor, twin = caches[1], copies[1]
    caches = copies = None
    check_pages(lm, survivor, twin)
    newcomer = lm.make_state(KV)
    step(lm, [torch.arange(5, 40)], [newcomer], [params[0]])  # in the pages that were released
    token = sampled[1]
    for _ in range(3):
        expected = plain_step(lm, [token], [twin], params[1:])[0]
        token = step(lm, [token], [survivor], params[1:])[0]
        assert torch.equal(token, expected)
    check_pages(lm, survivor, twin, newcomer)


def test_a_walk_can_feed_back_another_token(lm, confirmed):
    caches, copies, sampled = start(lm, PARAMS)
    for number in range(6):
        fed = [torch.tensor([9]) if row == number % 3 else sampled[row] for row in range(3)]
        expected = plain_step(lm, fed, copies, PARAMS)
        sampled = step(lm, fed, caches, PARAMS)
        assert torch.equal(sampled, expected)
    assert len(confirmed) >= 6
    check_pages(lm, *caches, *copies)


def test_a_guess_of_a_request_that_rests_stays_valid(lm, confirmed):
    params = [Sampling(max_tokens=40)] * 3
    caches, copies, sampled = start(lm, params)
    tokens = [*sampled]
    for rows in ([0, 1], [0, 1], [1, 2], [0, 2], [0, 1, 2], [2], [0, 1, 2]):
        own = [[state[row] for row in rows] for state in (tokens, caches, copies, params)]
        before = len(confirmed)
        expected = plain_step(lm, own[0], own[2], own[3])
        results = step(lm, own[0], own[1], own[3])
        assert torch.equal(results, expected)
        assert len(confirmed) == before + len(rows)
        for row, token in zip(rows, results, strict=True):
            tokens[row] = token
    check_pages(lm, *caches, *copies)


def test_prompts_join_a_batch_that_is_ahead(lm, confirmed):
    params = [Sampling(max_tokens=40)] * 3
    caches, copies, sampled = start(lm, params[:2])
    new, twin = lm.make_state(KV), lm.make_state(KV)
    prompt = torch.arange(4, 30)
    first = step(lm, [*sampled, prompt[:20]], [*caches, new], params, unfinished=[2])
    expected = plain_step(lm, [*sampled], copies, params[:2])
    assert torch.equal(first[:2], expected)
    second = step(lm, [*first[:2], prompt[20:]], [*caches, new], params)
    expected = plain_step(lm, [*first[:2], prompt], [*copies, twin], params)
    assert torch.equal(second, expected)
    third = step(lm, [*second], [*caches, new], params)
    assert torch.equal(third, plain_step(lm, [*second], [*copies, twin], params))
    assert len(confirmed) == 2 + 2 + 3
    check_pages(lm, *caches, *copies, new, twin)


def test_forks_evictions_and_other_ops_drop_the_guess(lm):
    params = [Sampling(max_tokens=40)] * 3
    caches, copies, sampled = start(lm, params)
    fork = caches[0].fork()
    caches[1].evict()
    lm.restore([caches[1]])
    assert [cache.guess.step is None for cache in (*caches, fork)] == [True, True, False, True]
    tokens = [*sampled, sampled[0]]
    expected = plain_step(lm, [*sampled], copies, params)
    results = step(lm, tokens, [*caches, fork], [*params, params[0]])
    assert torch.equal(results, torch.cat([expected, expected[:1]]))
    scored = lm.decoder.next_token(results[0], [caches[0]], params[:1], Layout(1, (1,)))[0]
    assert torch.equal(scored, plain_step(lm, [expected[0]], [copies[0]], params[:1]))
    after = step(lm, [scored[0]], [caches[0]], params[:1])
    assert torch.equal(after, plain_step(lm, [scored[0]], [copies[0]], params[:1]))
    check_pages(lm, *caches, *copies, fork)


def test_a_row_that_depends_on_its_history_is_not_guessed(lm, confirmed):
    params = [PENALTY, Sampling(max_tokens=10)]
    caches, copies, sampled = start(lm, params)
    for _ in range(4):
        expected = plain_step(lm, [*sampled], copies, params)
        sampled = step(lm, [*sampled], caches, params)
        assert torch.equal(sampled, expected)
    assert not confirmed


def test_a_row_that_fails_is_named_and_the_others_go_on(lm):
    """The second step ahead is not finite in the row of the second request."""
    params = [Sampling(max_tokens=40)] * 3
    caches, copies, sampled = start(lm, params)
    snapshots = [cache.snapshot() for cache in caches]
    launched = caches[1].guess.step.launched
    with torch.inference_mode():
        launched._copy._host[1, 1] = float("nan")
    with pytest.raises(RowsFailed) as error:
        step(lm, [*sampled], caches, params)
    assert {row: type(each) for row, each in error.value.errors.items()} == {1: NotFinite}
    for cache, snapshot in zip(caches, snapshots, strict=True):
        cache.rollback(snapshot)
    assert torch.equal(step(lm, [*sampled], caches, params), plain_step(lm, [*sampled], copies, params))
    check_pages(lm, *caches, *copies)


def test_a_token_that_differs_from_the_one_on_the_device_is_not_confirmed(lm, confirmed):
    """Of equally likely tokens, the argmax of a greedy row and the draw of a batch can be different ones."""
    params = [Sampling(max_tokens=40), Sampling(max_tokens=40, temperature=1.0, seed=1)]
    caches, copies, sampled = start(lm, params)
    with torch.inference_mode():
        launched = caches[0].guess.step.launched
        launched._copy._host[0, 0] = other = (int(launched._copy._host[0, 0]) + 1) % 90
    tokens = step(lm, [*sampled], caches, params)
    assert int(tokens[0]) == other
    plain_step(lm, [*sampled], copies, params)
    before = len(confirmed)
    assert torch.equal(step(lm, [*tokens], caches, params), plain_step(lm, [*tokens], copies, params))
    assert len(confirmed) == before + 1, "of the other row"
    check_pages(lm, *caches, *copies)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
@pytest.mark.parametrize("family", FAMILIES)
def test_random_schedules_write_what_generate_writes(family, seed, confirmed):
    """Requests join, rest, fork, are cut in chunks and leave memory at random."""
    given = [(prompt, [*PARAMS, PENALTY][at % 4]) for at, prompt in enumerate(prompts(8, seed))]
    lm = make(family, pages=200)
    served = ConcurrentRequests(lm, seed, token_budget=24).serve(given, forks=3, evictions=0.1)
    assert served == [reference_tokens(family, prompt, params) for prompt, params in given]
    assert confirmed


def test_a_cache_without_a_free_page_is_not_guessed():
    lm = make("llama", pages=4)  # one of them is the scratch page
    cache, params = lm.make_state(KV), [Sampling(max_tokens=5)]
    sampled = step(lm, [torch.arange(3, 3 + 2 * PAGE_SIZE)], [cache], params)
    assert cache.guess.step is not None
    for _ in range(4):
        sampled = step(lm, [*sampled], [cache], params)
    assert cache.guess.step is None, "its four pages are full"
    check_pages(lm, cache)


def test_the_device_works_while_the_host_does_other_things():
    lm = make("llama")
    params = [Sampling(max_tokens=100)] * 4
    caches, _, sampled = start(lm, params)
    step_s, host_s, count = 0.03, 0.02, 12
    for _ in range(2 * PAGE_SIZE + 2):  # graphs of the shapes that follow are captured
        sampled = step(lm, [*sampled], caches, params)
    with with_clock(step_s) as clock:
        sampled = step(lm, [*sampled], caches, params)
        begin, busy = time.perf_counter(), clock.busy_s
        for _ in range(count):
            time.sleep(host_s)
            sampled = step(lm, [*sampled], caches, params)
        seconds = time.perf_counter() - begin
    assert clock.busy_s - busy == pytest.approx(count * step_s)
    assert seconds < count * (step_s + 0.5 * host_s), "host and device overlap"


MAX_CALLS_PER_ROW = 2
"""Function calls of a step for each row that was guessed (measured: 1, which adds the token to the history)."""


def test_a_row_of_a_step_ahead_costs_few_calls():
    """The device waits for what the host does for each row."""
    lm = make("llama")

    def count_calls(rows):
        params = [PARAMS[0], Sampling(max_tokens=14, temperature=0.8, top_p=0.9)] * (rows // 2)
        caches = [lm.make_state(KV) for _ in params]
        sampled, layout = step(lm, [torch.arange(3, 3 + PAGE_SIZE)] * rows, caches, params), Layout(rows, (1,) * rows)
        counts = []

        def on_call(_frame, kind, _argument):
            counts[-1] += kind in ("call", "c_call")

        for _ in range(PAGE_SIZE):  # one of them begins a page
            counts.append(0)
            sys.setprofile(on_call)
            try:
                sampled = lm.decoder.ahead.next_tokens(sampled[:, 0], caches, params, layout)
            finally:
                sys.setprofile(None)
        return min(counts)

    assert (count_calls(32) - count_calls(8)) / 24 <= MAX_CALLS_PER_ROW


def test_a_step_ahead_waits_once_and_copies_once(lm):
    for _ in range(2):  # the first time, graphs are captured
        caches, _, sampled = start(lm, PARAMS)
        sampled = step(lm, [*sampled], caches, PARAMS)
        with count_traffic() as traffic:
            step(lm, [*sampled], caches, PARAMS)
    assert (traffic.syncs.total(), traffic.to_device.total(), traffic.to_host.total()) == (1, 1, 1)
