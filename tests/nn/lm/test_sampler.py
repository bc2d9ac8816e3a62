"""Tokens are chosen as transformers' generate chooses them, each row as if it were alone."""

import subprocess
import sys
from collections import Counter

import pytest
import torch
import transformers as t
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar.errors import NotFinite, RowsFailed
from mstar.nn.lm.sampler import compute_logprobs, sample_tokens
from mstar.nn.lm.sampler_state import SamplerState
from mstar.requests import BadSampling, Logprobs, Sampling
from tests.nn.lm.counter_based_generate import counter_based_draws
from tests.nn.lm.model_families import network

SIZE = 1100
"""Two whole blocks of the search and a piece."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SAMPLING_PARAMS = [
    Sampling(),
    Sampling(temperature=0.7, seed=1),
    Sampling(temperature=1.0, top_k=5, seed=2),
    Sampling(temperature=1.3, top_p=0.8, seed=3),
    Sampling(temperature=0.9, min_p=0.1, repetition_penalty=1.4, seed=4),
    Sampling(temperature=1.0, top_k=200, top_p=0.9, min_p=0.02, repetition_penalty=1.1, seed=5),
    Sampling(repetition_penalty=1.5),
    Sampling(presence_penalty=1.5),
    Sampling(frequency_penalty=1.5),
    Sampling(temperature=0.8, frequency_penalty=0.7, presence_penalty=-0.5, top_p=0.95, seed=6),
    Sampling(logit_bias=((3, 4.0), (7, -100.0))),
    Sampling(temperature=1.2, logit_bias=((1, 2.5), (1099, 3.0)), repetition_penalty=0.8, top_k=40, seed=7),
    Sampling(temperature=0.01, top_k=5000, top_p=0.01, seed=8),
    Sampling(temperature=10.0, top_k=150, seed=9),
    Sampling(
        temperature=2.0, allowed_ranges=((700, 900), (5, 9), (800, 950)), repetition_penalty=1.2, top_p=0.9, seed=10
    ),
    Sampling(allowed_ranges=((1090, 2000),)),
]


def expected(logits, params, history, prompt):
    """The token for one row, by transformers' own processors, one after the other."""
    scores, ids = logits.float()[None], torch.tensor([history])
    if params.logit_bias:
        scores = t.SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias})(ids, scores)
    if params.repetition_penalty != 1:
        scores = t.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    for token, count in Counter(history[prompt:]).items():
        scores[0, token] -= params.frequency_penalty * count + params.presence_penalty
    if params.allowed_ranges:
        allowed = [token for token in range(SIZE) if any(first <= token < end for first, end in params.allowed_ranges)]
        scores = t.PrefixConstrainedLogitsProcessor(lambda *_: allowed, 1)(ids, scores)
    if not params.temperature:
        return int(scores.argmax())
    scores = t.TemperatureLogitsWarper(params.temperature)(ids, scores)
    if params.top_k:
        scores = t.TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = t.TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p:
        scores = t.MinPLogitsWarper(params.min_p)(ids, scores)
    with counter_based_draws(params.seed, first=len(history) - prompt):
        return int(torch.multinomial(scores.softmax(-1), num_samples=1))


def new_samplers(prompts):
    samplers = [SamplerState() for _ in prompts]
    for sampler, prompt in zip(samplers, prompts, strict=True):
        sampler.append_tokens(prompt)
    return samplers


def test_a_batch_of_all_parameters_gets_what_the_processors_give_each():
    draws = torch.Generator().manual_seed(0)
    prompts = [torch.randint(SIZE, (row + 1,), generator=draws).tolist() for row in range(len(SAMPLING_PARAMS))]
    samplers = new_samplers(prompts)
    logits = torch.randn(len(SAMPLING_PARAMS), SIZE, generator=draws) * 4
    seen = set()
    for _ in range(12):
        given = logits + torch.randn(len(SAMPLING_PARAMS), SIZE, generator=draws)
        tokens = sample_tokens(given, SAMPLING_PARAMS, samplers)[:, 0].tolist()
        for row, params in enumerate(SAMPLING_PARAMS):
            history = samplers[row].history.tolist()
            wanted = expected(given[row], params, history, row + 1)
            assert tokens[row] == wanted, params
            samplers[row].append_tokens([wanted])
            seen.add(wanted)
    assert len(seen) > 30


def test_a_network_writes_what_generate_writes():
    library, prompt = network("llama").eval(), [5, 9, 13, 5]
    params = Sampling(temperature=0.9, top_k=30, top_p=0.9, repetition_penalty=1.2, logit_bias=((4, 3.0),), seed=11)
    how = {"do_sample": True, "temperature": 0.9, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.2}
    with torch.inference_mode(), counter_based_draws(params.seed):
        made = library.generate(
            torch.tensor([prompt]), max_new_tokens=12, eos_token_id=-1, sequence_bias={(4,): 3.0}, **how
        )
        (sampler,) = new_samplers([prompt])
        for _ in range(12):
            logits = library(torch.tensor([sampler.history.tolist()])).logits[:, -1]
            sampler.append_tokens(sample_tokens(logits, [params], [sampler])[0].tolist())
    assert sampler.history.tolist() == made[0].tolist()


def test_what_was_read_before_the_first_choice_is_not_written():
    params = Sampling(presence_penalty=2.0)
    logits = torch.tensor([[3.0, 2.0, 0.0]])
    (sampler,) = new_samplers([[]])
    mark = sampler.snapshot()
    assert sample_tokens(logits, [params], [sampler]).tolist() == [[0]]
    sampler.rollback(mark)
    sampler.append_tokens([0])
    assert sample_tokens(logits, [params], [sampler]).tolist() == [[0]], "a choice that was undone is not the first"
    assert sample_tokens(logits, [params], [sampler]).tolist() == [[0]], "a choice that is not fed back was not written"
    sampler.append_tokens([0])
    assert sample_tokens(logits, [params], [sampler]).tolist() == [[1]]
    sampler.append_tokens([1])
    assert sample_tokens(logits, [params], [sampler]).tolist() == [[0]]


def test_tokens_that_have_no_score_are_not_penalised():
    (sampler,) = new_samplers([[7, 1]])
    params = Sampling(repetition_penalty=2.0)
    assert sample_tokens(torch.tensor([[3.0, 4.0]]), [params], [sampler]).tolist() == [[0]]


tokens = st.integers(0, SIZE - 1)
sampling_params = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 7, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, -1.0]),
    logit_bias=st.lists(st.tuples(tokens, st.floats(-5, 5)), max_size=2).map(tuple),
    seed=st.integers(0, 9),
)
rows = st.lists(
    st.tuples(sampling_params, st.lists(tokens, max_size=4), st.lists(tokens, max_size=4)), min_size=1, max_size=5
)


def new_sampler(prompt, text):
    (sampler,) = new_samplers([prompt])
    sampler.start_generation()
    sampler.append_tokens(text)
    return sampler


@settings(max_examples=40, deadline=None)
@given(rows, st.integers(0, 2**32), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_row_is_untouched_by_its_neighbours(batch, seed, dtype):
    logits = torch.randn(len(batch), SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype)
    before = logits.clone()
    own = [params for params, _, _ in batch]
    together = sample_tokens(logits, own, [new_sampler(prompt, text) for _, prompt, text in batch])
    assert torch.equal(logits, before)
    for row, (params, prompt, text) in enumerate(batch):
        alone = sample_tokens(logits[row : row + 1], [params], [new_sampler(prompt, text)])
        assert torch.equal(alone, together[row : row + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [1, 97, 512, 1100])
def test_of_equals_the_first_is_chosen(dtype, size):
    logits = torch.randint(-2, 2, (9, size), generator=torch.Generator().manual_seed(size)).to(dtype)
    chosen = sample_tokens(logits, [Sampling()] * 9, new_samplers([[]] * 9))
    assert chosen[:, 0].tolist() == [row.index(max(row)) for row in logits.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_a_finite_winner_are_named_and_no_others(dtype):
    logits = torch.randn(5, SIZE).to(dtype)
    logits[1, 700] = float("nan")
    logits[2] = float("-inf")
    logits[3, :10] = float("-inf")
    logits[4, 1099] = float("inf")
    for params in (Sampling(), Sampling(temperature=1.0, top_k=2), Sampling(logit_bias=((700, -100.0),))):
        with pytest.raises(RowsFailed, match="fix: ") as raised:
            sample_tokens(logits, [params] * 5, new_samplers([[1]] * 5))
        assert {row: type(error) for row, error in raised.value.errors.items()} == dict.fromkeys((1, 2, 4), NotFinite)


def test_parameters_that_allow_no_token_fail_their_row():
    logits = torch.zeros(3, 4)
    own = [Sampling(), Sampling(logit_bias=((4, 1.0),)), Sampling(logit_bias=((3, 1.0),))]
    with pytest.raises(RowsFailed, match=r"logit_bias has unknown tokens \[4\]\n  fix: use tokens below 4") as raised:
        sample_tokens(logits, own, new_samplers([[]] * 3))
    assert list(raised.value.errors) == [1]
    logits[0] = torch.tensor([1e38, 1.0, 2.0, 3.0])
    tiny = Sampling(repetition_penalty=1e-9)
    with pytest.raises(RowsFailed, match="exclude every token") as raised:
        sample_tokens(logits, [tiny, tiny, tiny], new_samplers([[0], [1], [2]]))
    assert list(raised.value.errors) == [0]


def write(sampler, params, count):
    logits = torch.randn(count, SIZE, generator=torch.Generator().manual_seed(5))
    for row in logits:
        sampler.append_tokens(sample_tokens(row[None], [params], [sampler])[0].tolist())
    return sampler.history.tolist()


@pytest.mark.parametrize("params", [SAMPLING_PARAMS[0], SAMPLING_PARAMS[6], SAMPLING_PARAMS[9]])
@pytest.mark.parametrize("already", [0, 3])
def test_rollback_undoes_everything_and_a_fork_is_a_copy(params, already):
    (sampler,) = new_samplers([[4, 5]])
    begin = write(sampler, params, already)
    mark, fork = sampler.snapshot(), sampler.fork()
    first = write(sampler, params, 4)
    again = sampler.snapshot()
    write(sampler, params, 2)
    sampler.rollback(again)
    assert sampler.history.tolist() == first
    sampler.rollback(mark)
    assert sampler.history.tolist() == begin
    assert write(sampler, params, 4) == first
    assert write(fork, params, 4) == first, "it neither saw what the other wrote, nor shared its random numbers"


def test_logprobs_are_those_of_the_model():
    logits = torch.randn(3, SIZE).bfloat16()
    own = [
        Sampling(),
        Sampling(logprobs=0, repetition_penalty=5.0),
        Sampling(logprobs=3, temperature=2.0, logit_bias=((1, 9.0),)),
    ]
    chosen = torch.tensor([[8], [1099], [1]])
    first, second, third = compute_logprobs(logits, own, chosen)
    assert first is None
    logs = [torch.log(torch.exp(row.double()) / torch.exp(row.double()).sum()) for row in logits]
    assert second == Logprobs(pytest.approx(float(logs[1][1099]), abs=1e-5), ())
    assert third is not None
    assert third.token_logprob == pytest.approx(float(logs[2][1]), abs=1e-5)
    best = logs[2].sort(descending=True, stable=True)
    assert [number for _, number in third.top_logprobs] == pytest.approx(best.values[:3].tolist(), abs=1e-5)
    assert all(logs[2][token] == pytest.approx(number, abs=1e-5) for token, number in third.top_logprobs)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.5}, "temperature is -0.5\n  fix: temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan\n  fix: temperature must be 0 or more"),
        ({"top_p": 0.0}, "top_p is 0.0\n  fix: top_p must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1\n  fix: top_p must be above 0 and at most 1"),
        ({"top_k": -1}, "top_k is -1\n  fix: top_k must be 0 or more"),
        ({"min_p": 2}, "min_p is 2\n  fix: min_p must be from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens is 0\n  fix: max_tokens must be 1 or more"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0\n  fix: repetition_penalty must be above 0"),
        ({"presence_penalty": 3}, "presence_penalty is 3\n  fix: presence_penalty must be from -2 to 2"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3\n  fix: frequency_penalty must be from -2 to 2"),
        ({"logit_bias": ((-1, 2.0),)}, "logit_bias is ((-1, 2.0),)\n  fix: logit_bias must be pairs of a token"),
        ({"logit_bias": ((1, float("inf")),)}, "logit_bias is ((1, inf),)\n  fix: logit_bias must be pairs of a token"),
        (
            {"allowed_ranges": ((5, 5),)},
            "allowed_ranges is ((5, 5),)\n  fix: allowed_ranges must be ranges of tokens, none of them empty",
        ),
        ({"stop_token_ids": (-2,)}, "stop_token_ids is (-2,)\n  fix: stop_token_ids must be tokens, 0 or more"),
        ({"logprobs": -1}, "logprobs is -1\n  fix: logprobs must be None, or 0 or more"),
        ({"seed": 2**64}, "seed is 18446744073709551616\n  fix: seed must be a number of 64 bits"),
        ({"top_k": -1, "min_p": -1}, "top_k is -1, min_p is -1\n  fix: top_k must be 0 or more; min_p must be from"),
    ],
)
def test_parameters_out_of_range_are_rejected(wrong, message):
    with pytest.raises(BadSampling) as raised:
        Sampling(**wrong)
    assert str(raised.value).startswith(message)


def test_parameters_need_no_libraries():
    code = (
        "import sys; from mstar.requests import Grammar, Sampling; "
        "hash(Sampling(grammar=Grammar.regex('a')));"
        "sys.exit(bool({'torch', 'llguidance', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
