"""What a decoder does besides writing: embeddings, hidden states, looks that leave no trace, shared beginnings."""

import copy
import random

import pytest
import torch
import transformers as t

from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone
from mstar.errors import LoadError, OutOfPages
from mstar.nn import native
from mstar.nn.compile import graph_capture
from mstar.nn.encoder import hash_embeddings
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.decoder import SlowPath
from mstar.requests import Sampling
from mstar.walk.states import KV
from tests.nn.lm.concurrent_requests import ConcurrentRequests, make_component, prompts, reference_tokens
from tests.nn.lm.model_families import SMALL, network

GREEDY = Sampling()


def run(lm, op, **columns):
    count = len(next(iter(columns.values())))
    return [values[0] for values in lm.ops()[op].run(lm, columns, count)]


def hidden_of(name, tokens):
    """The library's last hidden states."""
    with torch.no_grad():
        return network(name)(tokens[None], output_hidden_states=True).hidden_states[-1][0]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_reading_gives_the_librarys_hidden_states(name):
    lm = make_component(name)
    given = prompts(5)
    for tokens, hidden in zip(given, run(lm, "hidden_states", tokens=given, kv=[lm.kv() for _ in given]), strict=True):
        torch.testing.assert_close(hidden, hidden_of(name, tokens), atol=2e-4, rtol=1e-4)


def test_reading_goes_on_where_it_stopped():
    lm = make_component("llama")
    tokens = prompts(3)[2]
    cache = lm.kv()
    parts = [run(lm, "hidden_states", tokens=[part], kv=[cache])[0] for part in tokens.split([1, 40, 3, 26])]
    torch.testing.assert_close(torch.cat(parts), hidden_of("llama", tokens), atol=2e-4, rtol=1e-4)


def test_embeddings_are_read_as_the_tokens_they_stand_for():
    lm = make_component("llama")
    given = prompts(5)
    embeddings = run(lm, "embed", tokens=given)
    caches = [lm.kv() for _ in given]
    chosen = run(lm, "next_token_from_embeddings", embeddings=embeddings, kv=caches, sampling=[GREEDY] * 5)
    assert [int(one) for one in chosen] == [reference_tokens("llama", one, Sampling(max_tokens=1))[0] for one in given]
    hidden = run(lm, "hidden_states_from_embeddings", embeddings=embeddings, kv=[lm.kv() for _ in given])
    torch.testing.assert_close(hidden[2], hidden_of("llama", given[2]), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("swap", [0, 1 << 20])
def test_a_cache_of_tokens_and_embeddings_is_evicted_and_restored(swap):
    lm = make_component("llama", swap_bytes=swap)
    first, second, third = prompts(6)[3:]
    cache = lm.kv()
    run(lm, "hidden_states", tokens=[first], kv=[cache])
    run(lm, "hidden_states_from_embeddings", embeddings=run(lm, "embed", tokens=[second]), kv=[cache])
    cache.evict()
    assert (cache.is_dropped, lm.decoder.store.pool.free_pages) == (swap == 0, 256)
    lm.restore([cache])
    (token,) = run(lm, "next_token", tokens=[third], kv=[cache], sampling=[GREEDY])
    assert [int(token)] == reference_tokens("llama", torch.cat([first, second, third]), Sampling(max_tokens=1))
    assert lm.decoder.store.swap_bytes == swap, "what was outside of the pages is let go"


def full_attention_states(tokens, new):
    """The library's hidden states when the last `new` tokens see everything, each other too."""
    count = len(tokens)
    mask = torch.ones(count, count, dtype=torch.bool).tril()
    mask[-new:] = True
    with torch.no_grad():
        given = torch.zeros(1, 1, count, count).masked_fill(~mask, float("-inf"))
        return network("llama")(tokens[None], attention_mask=given, output_hidden_states=True).hidden_states[-1][0]


def test_attend_only_sees_the_cache_and_itself_and_changes_nothing():
    lm = make_component("llama")
    bases, suffixes = prompts(6)[2:4], prompts(8)[4:6]
    caches = [lm.kv(), lm.kv()]
    run(lm, "hidden_states", tokens=bases, kv=caches)
    free = lm.decoder.store.pool.free_pages
    looks = [caches[0], caches[1], caches[0]]
    given = run(lm, "embed", tokens=[*suffixes, suffixes[1]])
    for _ in range(2):  # the second look sees what the first saw
        seen = run(lm, "attend_only", embeddings=given, kv=looks)
        right = [
            full_attention_states(torch.cat([b, n]), len(n))[-len(n) :] for b, n in zip(bases, suffixes, strict=True)
        ]
        right.append(full_attention_states(torch.cat([bases[0], suffixes[1]]), len(suffixes[1]))[-len(suffixes[1]) :])
        for one, wanted in zip(seen, right, strict=True):
            torch.testing.assert_close(one, wanted, atol=2e-4, rtol=1e-4)
        lm.decoder.store.pool.check()
        assert lm.decoder.store.pool.free_pages == free
    (token,) = run(lm, "next_token", tokens=[suffixes[0]], kv=[caches[0]], sampling=[GREEDY])
    assert [int(token)] == reference_tokens("llama", torch.cat([bases[0], suffixes[0]]), Sampling(max_tokens=1))


def test_logprobs_are_those_of_the_librarys_logits():
    lm = make_component("llama")
    given = prompts(4)
    all_params = [Sampling(logprobs=3), Sampling(), Sampling(logprobs=0), Sampling(temperature=1.0, logprobs=1)]
    columns = {"tokens": given, "kv": [lm.kv() for _ in given], "sampling": all_params}
    for prompt, params, (token, logprobs) in zip(
        given, all_params, lm.ops()["next_token_scored"].run(lm, columns, 4), strict=True
    ):
        if params.logprobs is None:
            assert logprobs is None
            continue
        with torch.no_grad():
            right = network("llama")(prompt[None]).logits[0, -1].log_softmax(-1)
        assert logprobs.token_logprob == pytest.approx(float(right[int(token)]), abs=1e-4)
        assert [one for one, _ in logprobs.top_logprobs] == right.topk(params.logprobs).indices.tolist()


# ---------------------------------------------------------------- shared beginnings
class Counting:
    """How many tokens a component's network has run."""

    def __init__(self, lm, monkeypatch):
        self.tokens = 0
        forward = lm.decoder._forward

        def counted(embeddings, positions, last):
            self.tokens += embeddings.shape[1]
            return forward(embeddings, positions, last)

        monkeypatch.setattr(lm.decoder, "_forward", counted)


def test_what_another_request_has_read_is_not_read_again(monkeypatch):
    lm = make_component("llama")
    ran = Counting(lm, monkeypatch)
    prompt = prompts(3)[2]
    right = reference_tokens("llama", prompt, Sampling(max_tokens=8))
    engine_requests = [(prompt, Sampling(max_tokens=8))]
    assert ConcurrentRequests(lm, 1).serve(engine_requests) == [right]
    assert ran.tokens == 70 + 7
    assert ConcurrentRequests(lm, 2).serve(engine_requests) == [right], "the first request is gone, its pages are not"
    assert ran.tokens == 2 * (70 + 7) - 69, "17 pages of 4 were there, and what the prompt has of the next one"
    longer = torch.cat([prompt, torch.tensor(right[:5]), torch.tensor([9, 9])])
    wanted = reference_tokens("llama", longer, Sampling(max_tokens=3))
    assert ConcurrentRequests(lm, 3).serve([(longer, Sampling(max_tokens=3))]) == [wanted]
    assert ran.tokens == 2 * (70 + 7) - 69 + 77 + 2 - 75, "what a request wrote is there too, up to the first 9"


def test_what_was_decoded_on_a_dropped_fork_is_not_read_again(monkeypatch):
    """A conversation: an answer is decoded on a fork and cut at any token; then the cache before it reads it."""
    lm = make_component("llama")
    ran = Counting(lm, monkeypatch)
    for cut in (0, 1, 3, 6, 9):
        prompt = torch.cat([prompts(3)[2], torch.tensor([cut + 20])])  # ends inside a page of 4
        kept = lm.kv()
        run(lm, "next_token", tokens=[prompt[:-1]], kv=[kept], sampling=[GREEDY])
        answer, token = kept.fork(), prompt[-1:]
        written = []
        for _ in range(10):
            (token,) = run(lm, "next_token", tokens=[token], kv=[answer], sampling=[GREEDY])
            written.append(int(token))
        del answer
        before, history = ran.tokens, [int(prompt[-1]), *written[:cut]]
        question = torch.tensor([*history, 9, 8, 7])
        (token,) = run(lm, "next_token", tokens=[question], kv=[kept], sampling=[GREEDY])
        assert ran.tokens - before == 3, "the new question"
        assert int(token) == after_tokens(torch.cat([prompt[:-1], question]))
        lm.decoder.store.pool.check()


def after_tokens(tokens):
    return reference_tokens("llama", tokens, Sampling(max_tokens=1))[0]


def test_another_tenant_shares_nothing(monkeypatch):
    lm = make_component("llama")
    ran = Counting(lm, monkeypatch)
    prompt = prompts(3)[2]
    for tenant in ("", "other", "other"):
        cache = lm.kv()
        cache.tenant = tenant
        run(lm, "next_token", tokens=[prompt], kv=[cache], sampling=[GREEDY])
    assert ran.tokens == 70 + 70 + 1


def test_what_requests_of_a_batch_share_is_read_once(monkeypatch):
    lm = make_component("llama")
    ran = Counting(lm, monkeypatch)
    begin, params = prompts(3)[2], Sampling(max_tokens=1)
    given = [torch.cat([begin[:cut], torch.full((own,), own)]) for cut, own in ((70, 12), (66, 2), (70, 3), (30, 2))]
    chosen = run(lm, "next_token", tokens=given, kv=[lm.kv() for _ in given], sampling=[params] * 4)
    assert [int(one) for one in chosen] == [reference_tokens("llama", one, params)[0] for one in given]
    assert ran.tokens == 68 + (14 + 2 + 5 + 2), "one reads 17 pages of 4, then all read their own"
    lm.next_token(given[0], lm.kv(), params)
    assert ran.tokens == 68 + (14 + 2 + 5 + 2) + 1, "what it read behind them is shared as well"


def test_what_is_too_little_to_share_takes_no_forward_of_its_own(monkeypatch):
    lm = make_component("llama")
    ran = Counting(lm, monkeypatch)
    given = [torch.cat([prompts(3)[2][:20], torch.tensor([number])]) for number in (5, 6, 7)]
    run(lm, "next_token", tokens=given, kv=[lm.kv() for _ in given], sampling=[GREEDY] * 3)
    assert ran.tokens == 3 * 21


def test_a_prompt_in_pieces_takes_pages_in_the_middle_of_others(monkeypatch):
    lm = make_component("llama")
    ran = Counting(lm, monkeypatch)
    params = Sampling(max_tokens=4)
    request, right = (prompts(3)[2], params), reference_tokens("llama", prompts(3)[2], params)
    assert ConcurrentRequests(lm, 1).serve([request]) == [right]
    before = ran.tokens
    assert ConcurrentRequests(lm, 2, token_budget=7).serve([request]) == [right]
    assert ran.tokens - before <= 10 * 4 + 3, "of each of 10 pieces the last page at most"


# ---------------------------------------------------------------- embeddings with numbers
def mixed_prompt(lm, seed, *others):
    """A prompt in which something is shown that is no token, and is the same for a seed."""
    tokens = torch.cat([prompts(3)[2], torch.tensor(others)])
    embeddings = lm.embed(tokens).clone()
    torch.manual_seed(seed)
    embeddings[5:40] = torch.randn(35, embeddings.shape[1])
    numbers = tokens.clone()
    numbers[5:40] = hash_embeddings(embeddings[5:40])
    return {"content_ids": numbers, "embeddings": embeddings}


def after(given, count):
    """What the library's own generate writes after embeddings."""
    how = {"max_new_tokens": count, "do_sample": False, "eos_token_id": -1}
    return network("llama").generate(inputs_embeds=given["embeddings"][None], **how)[0].tolist()


def test_what_is_shown_is_shared_by_its_content(monkeypatch):
    lm = make_component("llama")
    ran = Counting(lm, monkeypatch)
    given = [mixed_prompt(lm, 1, 9), mixed_prompt(lm, 2, 9), mixed_prompt(lm, 1, 8)]
    for one, read in zip(given, (71, 71 - 5, 71 - 70), strict=True):
        before = ran.tokens
        assert [int(lm.next_token_mixed(**one, kv=lm.kv(), sampling=GREEDY))] == after(one, 1)
        assert ran.tokens - before == read
    together = {key: [mixed_prompt(lm, 3, last)[key] for last in (7, 8)] for key in given[0]}
    before = ran.tokens
    chosen = run(lm, "next_token_mixed", **together, kv=[lm.kv(), lm.kv()], sampling=[GREEDY] * 2)
    assert [[int(one)] for one in chosen] == [after(mixed_prompt(lm, 3, last), 1) for last in (7, 8)]
    assert ran.tokens - before == 63 + 3 + 3


@pytest.mark.parametrize("swap", [0, 1 << 20])
def test_a_cache_of_images_is_evicted_migrated_and_shared(swap, monkeypatch):
    here, there = make_component("llama", swap_bytes=swap), make_component("llama", swap_bytes=swap)
    given, cache = mixed_prompt(here, 1, 9), here.kv()
    token = here.next_token_mixed(**given, kv=cache, sampling=GREEDY)
    written = [int(token)]
    cache.evict()
    here.restore([cache])
    moved = there.load_state(KV, cache.export())
    moved.evict()
    assert moved.is_dropped == (swap == 0)
    there.restore([moved])
    for _ in range(4):
        token = there.next_token(token, moved, GREEDY)
        written.append(int(token))
    assert written == after(given, 5)
    ran = Counting(there, monkeypatch)
    there.next_token_mixed(**given, kv=there.kv(), sampling=GREEDY)
    assert ran.tokens == 71 - 70


def test_tokens_of_a_prompt_in_which_something_is_shown_count():
    lm = make_component("llama")
    given, penalty = mixed_prompt(lm, 1, 9), Sampling(repetition_penalty=1e6)
    likeliest = int(lm.next_token_mixed(**given, kv=lm.kv(), sampling=GREEDY))
    given["content_ids"][3] = likeliest  # as if it had been said
    assert int(lm.next_token_mixed(**given, kv=lm.kv(), sampling=penalty)) != likeliest


def test_prefix_cache_pages_are_evicted_when_needed():
    lm = make_component("llama", pages=20)
    for seed in range(4):
        prompt = prompts(3, seed)[2]
        params = Sampling(max_tokens=6)
        assert ConcurrentRequests(lm, seed).serve([(prompt, params)]) == [reference_tokens("llama", prompt, params)]


# ---------------------------------------------------------------- windows and moves
def test_what_no_layer_can_see_any_more_is_given_back():
    lm = make_component("mistral", pages=4)  # a window of 8, pages of 4
    assert lm.decoder.store.window == 8
    prompt, params = prompts(5)[2], Sampling(max_tokens=60)
    assert ConcurrentRequests(lm, 1, token_budget=4).serve([(prompt, params)]) == [
        reference_tokens("mistral", prompt, params)
    ]


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_cache_moves_to_another_component_and_goes_on_there(name):
    here, there = make_component(name), make_component(name)
    prompt = prompts(3)[2]
    params = Sampling(max_tokens=10, temperature=1.0, seed=5)
    right = reference_tokens(name, prompt, params)
    cache = here.kv()
    (token,) = run(here, "next_token", tokens=[prompt], kv=[cache], sampling=[params])
    written = [int(token)]
    for lm in (there, here, there):
        moved = lm.kv()
        moved.load(cache.export())
        cache.free()
        cache = moved
        for _ in range(3):
            (token,) = run(lm, "next_token", tokens=[token], kv=[cache], sampling=[params])
            written.append(int(token))
    assert written == right
    for lm in (here, there):
        lm.decoder.store.pool.check()
    assert moved.export().data.is_contiguous()


def test_a_cache_that_does_not_fit_there_stays_here():
    here, there = make_component("llama"), make_component("llama", pages=3)
    cache = here.kv()
    run(here, "next_token", tokens=[prompts(3)[2]], kv=[cache], sampling=[GREEDY])
    with pytest.raises(OutOfPages):
        there.kv().load(cache.export())
    assert (there.decoder.store.pool.free_pages, cache.table.length) == (3, 70)


# ---------------------------------------------------------------- other ways to run
def not_recorded(*_args, **_kwargs):
    raise RuntimeError("cannot be recorded")


def test_without_kernels_torch_does_the_same(monkeypatch):
    monkeypatch.setattr(native, "_library", lambda: None)
    monkeypatch.setattr(graph_capture, "flatten", not_recorded)
    lm = CausalLM(lambda: copy.deepcopy(network("gemma3")), eos_token_id=2, pages=256, page_size=4)
    requests = [(prompt, Sampling(max_tokens=6)) for prompt in prompts(6)]
    with pytest.warns(SlowPath, match="cannot be recorded"):
        lm.kv()
    assert ConcurrentRequests(lm, 1, token_budget=50).serve(requests) == [
        reference_tokens("gemma3", *one) for one in requests
    ]


def test_deterministic_runs_need_the_kernels():
    lm = CausalLM(lambda: copy.deepcopy(network("llama")).double(), eos_token_id=2, deterministic=True)
    with pytest.raises(LoadError, match="deterministic mode needs the fused kernels"):
        lm.kv()


def bits(lm, requests, seed, largest):
    """Tokens and exact logprobs of all requests, in batches of limited size."""
    engine, chosen = Engine(max_batched_tokens=chosen_budget(seed)), random.Random(seed)
    waiting = [[prompt, engine.new_state(lm, KV), params, []] for prompt, params in requests]
    every, jobs = [*waiting], {}
    while waiting:
        batch = chosen.sample(waiting, min(len(waiting), chosen.randint(1, largest)))
        for one in batch:
            given = one[3][-1][0] if one[3] else one[0]
            jobs.setdefault(id(one), Job({"tokens": given, "kv": one[1], "sampling": one[2]}))
        results = engine.run(lm, lm.ops()["next_token_scored"], [jobs[id(one)] for one in batch])
        for one, result in zip(batch, results, strict=True):
            if isinstance(result, JobDone):
                one[3].append(result.values)
                del jobs[id(one)]
        waiting = [one for one in waiting if len(one[3]) < one[2].max_tokens]
    return [[(int(token), logprobs.token_logprob) for token, logprobs in one[3]] for one in every]


def chosen_budget(seed):
    return None if seed == 0 else 40 + seed


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "phi", "gpt2"])
def test_every_request_gets_the_same_bits_alone_and_in_crowds(family):
    """Without deterministic=True: no product, attention or activation depends on other rows."""
    lm = CausalLM(lambda: copy.deepcopy(network(family)), eos_token_id=2, pages=1024, page_size=4)
    chosen = random.Random(1)
    requests = [
        (torch.randint(3, 97, (chosen.randint(1, 70),)), Sampling(max_tokens=3, temperature=row % 2, logprobs=0))
        for row in range(12)
    ]
    assert bits(lm, requests, 7, 9) == [bits(lm, [one], 0, 1)[0] for one in requests]
    assert lm.nondeterminism() == ""


@pytest.mark.parametrize(
    ("family", "reason"),
    [("gemma2", "soft cap"), ("gpt_oss", "soft cap or sinks"), ("qwen3_moe", "experts")],
)
def test_why_a_result_depends_on_the_batch(family, reason):
    lm = CausalLM(lambda: copy.deepcopy(network(family)), eos_token_id=2, pages=64, page_size=4)
    assert lm.nondeterminism() == "", "it is not loaded"
    lm.prepare()
    assert reason in lm.nondeterminism()


def test_without_kernels_results_depend_on_the_batch(monkeypatch):
    monkeypatch.setattr(native, "_library", lambda: None)
    lm = CausalLM(lambda: copy.deepcopy(network("llama")), eos_token_id=2, pages=64, page_size=4)
    lm.prepare()
    assert "without a C++ compiler" in lm.nondeterminism()


def test_bfloat16_with_instructions_depends_on_the_batch(monkeypatch):
    monkeypatch.setattr(native, "supports_bf16_matmul", lambda: True)
    for is_deterministic in (False, True):
        made = copy.deepcopy(network("llama")).bfloat16()
        lm = CausalLM(lambda: made, eos_token_id=2, pages=64, page_size=4, deterministic=is_deterministic)  # noqa: B023
        lm.prepare()
        assert ("oneDNN" in lm.nondeterminism()) is not is_deterministic


@pytest.mark.slow
def test_requests_get_the_same_bits_alone_and_in_crowds():
    check_bits(torch.bfloat16, 60)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_500_of_500_requests_get_the_same_bits_alone_and_in_crowds(dtype):
    check_bits(dtype, 500)


def check_bits(dtype, count):
    torch.manual_seed(0)
    sizes = SMALL | {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 3, "vocab_size": 1000}
    made = t.LlamaForCausalLM(t.LlamaConfig(**sizes)).to(dtype)
    lm = CausalLM(lambda: made, eos_token_id=2, pages=4096, page_size=4, deterministic=True)
    chosen = random.Random(1)
    requests = [
        (torch.randint(3, 1000, (chosen.randint(1, 90),)), Sampling(max_tokens=4, temperature=row % 2, logprobs=0))
        for row in range(count)
    ]
    alone = [bits(lm, [one], 0, 1)[0] for one in requests]
    crowd = bits(lm, requests, 7, 32)
    assert sum(a == b for a, b in zip(alone, crowd, strict=True)) == count
