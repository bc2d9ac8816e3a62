"""A request that moves to another component, as bytes, writes what it would have written here."""

import subprocess
import sys

import pytest
import torch

from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, JobFailed
from mstar.errors import LoadError, NeverFits
from mstar.nn.audio.codec import Codec, CodecStreamState
from mstar.nn.lm import eager_seq2seq
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerState
from mstar.requests import Grammar, Sampling
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.values import pack, unpack
from mstar.walk.states import KV
from tests.nn.audio import test_codec as codecs
from tests.nn.lm import test_seq2seq as whisper
from tests.nn.lm.concurrent_requests import make_component, prompts, reference_tokens
from tests.nn.lm.test_grammar import VOCABULARY, new_sampler, noise, read

HALF = 6
GREEDY = Sampling(max_tokens=2 * HALF)
SAMPLING_PARAMS = {
    "greedy": GREEDY,
    "drawn": Sampling(max_tokens=2 * HALF, temperature=1.2, top_p=0.9, seed=5),
    "penalties": Sampling(
        max_tokens=2 * HALF,
        temperature=0.8,
        seed=2,
        repetition_penalty=1.1,
        presence_penalty=2.0,
        frequency_penalty=2.0,
    ),
}


def sent(exported):
    return unpack(pack(exported))


def write(engine, lm, cache, given, params, count=HALF):
    """Generate a number of tokens after the given one."""
    written = []
    for _ in range(count):
        job = Job({"tokens": given, "kv": cache, "sampling": params})
        (result,) = engine.run(lm, lm.ops()["next_token"], [job])
        assert isinstance(result, JobDone), result
        given = result.values[0]
        written.append(int(given))
    return written


def write_split_and_whole(here, there, prompt, params):
    """What is written when the second half is written elsewhere, and when it is not."""
    first, second = Engine(), Engine()
    cache = first.new_state(here, KV)
    begun = write(first, here, cache, prompt, params)
    moved = second.load(there, KV, sent(first.export(cache)))
    last = torch.tensor(begun[-1:])
    there.decoder.store.pool.check()
    return begun + write(second, there, moved, last, params), begun + write(first, here, cache, last, params)


@pytest.mark.parametrize("params", SAMPLING_PARAMS.values(), ids=SAMPLING_PARAMS)
@pytest.mark.parametrize("name", ["llama", "mistral", pytest.param("gemma3", marks=pytest.mark.nightly)])
def test_what_moves_in_the_middle_goes_on_as_if_it_had_stayed(name, params):
    prompt = prompts(3)[2]
    moved, stayed = write_split_and_whole(
        make_component(name), make_component(name, pages=100, page_size=8), prompt, params
    )
    assert moved == stayed
    if not params.presence_penalty:  # generate has none
        assert moved == reference_tokens(name, prompt, params)


def test_a_grammar_is_followed_on():
    params = Sampling(max_tokens=2 * HALF, temperature=1.5, seed=1, grammar=Grammar.regex("([a-f][0-9][!-/])+"))
    here, there = (make_component("llama", vocabulary=lambda: VOCABULARY) for _ in range(2))
    moved, stayed = write_split_and_whole(here, there, prompts(4)[3], params)
    assert moved == stayed
    text = [token + ord("!") for token in moved]  # as the alphabet's first tokens are the characters from ! on
    assert all(chr(one) in "abcdef" for one in text[::3])
    assert all(chr(one).isdigit() for one in text[1::3])


def test_a_cache_of_embeddings_moves_with_its_tenant_and_its_lineage():
    here, there = make_component("llama"), make_component("llama", swap_bytes=0)
    first, second = prompts(5)[3:]
    cache = here.kv()
    cache.tenant = "somebody"
    here.hidden_states(first, cache)
    here.hidden_states_from_embeddings(here.embed(second), cache)
    moved = there.load_state(KV, sent(cache.export()))
    assert moved.tenant == "somebody"
    moved.evict()
    assert moved.is_dropped
    there.restore([moved])
    assert there.next_token(torch.tensor([9]), moved, GREEDY) == here.next_token(torch.tensor([9]), cache, GREEDY)


@pytest.mark.parametrize("swap", [0, 1 << 20])
def test_an_evicted_cache_can_be_migrated(swap):
    engine, lm = Engine(), make_component("llama", swap_bytes=swap)
    cache = engine.new_state(lm, KV)
    token = torch.tensor(write(engine, lm, cache, prompts(3)[2], GREEDY, 1))
    cache.evict()
    moved = engine.load(lm, KV, sent(engine.export(cache)))
    assert [int(token), *write(engine, lm, moved, token, GREEDY)] == reference_tokens(
        "llama", prompts(3)[2], Sampling(max_tokens=HALF + 1)
    )


def test_others_are_evicted_for_an_incoming_cache():
    engine, lm = Engine(), make_component("llama", pages=24)
    cache = engine.new_state(lm, KV)
    write(engine, lm, cache, prompts(3)[2], GREEDY, 1)
    moved = engine.load(lm, KV, sent(engine.export(cache)))
    assert engine.take_evicted() == [cache]
    assert (moved.is_resident, cache.is_resident) == (True, False)
    small = make_component("llama", pages=3)
    with pytest.raises(NeverFits, match="18 KV cache pages of 4 positions needed, 3 exist"):
        Engine().load(small, KV, sent(engine.export(moved)))
    small.decoder.store.pool.check()


def test_a_cache_of_another_dtype_is_refused():
    lm = make_component("llama")
    cache = lm.kv()
    lm.next_token(prompts(4)[3], cache, GREEDY)
    exported = sent(cache.export())
    wider = type(exported)(
        **{name: getattr(exported, name) for name in exported.__slots__ if name != "data"}
        | {"data": torch.cat([exported.data, exported.data])}
    )
    with pytest.raises(LoadError, match=r"bytes does not fit \d+ positions[\s\S]*fix: migrate caches only"):
        lm.load_state(KV, wider)


def test_a_sampler_resumes_at_any_position():
    params = Sampling(temperature=2.0, seed=4, grammar=Grammar.regex("ab+c|x[0-9]{3}"))
    sampler = new_sampler()
    for at in range(12):  # it goes through complete texts, after which another begins
        elsewhere = SamplerState(VOCABULARY)
        elsewhere.load(sent(sampler.export()))
        assert elsewhere.generated() == sampler.generated()
        samplers = (sampler.fork(), elsewhere, sampler)
        forked, other, token = (sample_tokens(noise(1, at), [params], [one])[0] for one in samplers)
        assert forked.tolist() == other.tolist() == token.tolist()
        following = token.tolist() if int(token) != 258 else read("x")
        sampler.append_tokens(following)


def test_a_sampler_with_a_grammar_needs_a_vocabulary_at_its_target():
    sampler = new_sampler()
    sample_tokens(noise(1), [Sampling(grammar=Grammar.regex("a+"))], [sampler])
    with pytest.raises(LoadError, match="the model has no vocabulary for grammars"):
        SamplerState().load(sent(sampler.export()))


# ---------------------------------------------------------------- other states
def test_cross_attention_kv_is_migrated_too(monkeypatch):
    monkeypatch.setattr(eager_seq2seq, "DecoderHalf", whisper._writing_half)
    here, there = whisper.component(), whisper.component(page_size=8, pages=40)
    (cache,) = whisper.encoded_caches(here, 1)
    here.next_token(torch.arange(3, 9), cache, whisper.SAMPLING_PARAMS[0])
    moved = there.load_state(KV, sent(cache.export()))
    right = whisper.generated(whisper.sound(0), torch.arange(3, 10), whisper.ONE)
    assert [int(there.next_token(torch.tensor([9]), moved, whisper.SAMPLING_PARAMS[0]))] == right
    with pytest.raises(NeverFits, match="3 KV cache pages of 8 positions needed, 2 exist"):
        whisper.component(page_size=8, pages=2).load_state(KV, sent(cache.export()))


@pytest.mark.parametrize("name", ["mimi", "encodec"])
def test_a_sound_goes_on_elsewhere(name):
    make, sound, books, hop, _ = codecs.CAUSAL[name]
    here, there = (Codec(make, sound, hop=hop) for _ in range(2))
    codes = torch.randint(16, (20, books), generator=torch.Generator().manual_seed(1))
    past = here.state(CodecStreamState)
    here.decode(codes[:10], past)
    moved = there.load_state(CodecStreamState, sent(past.export()))
    assert torch.equal(there.decode(codes[10:], moved), here.decode(codes[10:], past))


# ---------------------------------------------------------------- loading, counting, refusing
def test_a_component_is_prepared_before_its_first_request():
    lm = make_component("llama")
    assert lm.memory_stats() == {"pages_used": 0, "pages": 256}
    assert "decoder" not in vars(lm), "counting loads nothing"
    lm.prepare()
    assert "decoder" in vars(lm)
    cache = lm.kv()
    lm.next_token(prompts(3)[2], cache, GREEDY)
    assert lm.memory_stats() == {"pages_used": 18, "pages": 256}


def test_a_request_that_can_never_fit_is_refused_before_anything_is_computed(monkeypatch):
    engine, lm = Engine(), make_component("llama", pages=20)
    monkeypatch.setattr(lm.decoder, "_run", lambda *_: pytest.fail("it was computed"))
    lengths = [(70, 12), (79, 3), (1, 81)]  # of 80 positions
    jobs = [
        Job(
            {"tokens": torch.ones(count, dtype=torch.int64), "kv": engine.new_state(lm, KV), "sampling": Sampling(more)}
        )
        for count, more in lengths
    ]
    results = engine.run(lm, lm.ops()["next_token"], jobs)
    assert [type(result.error) for result in results] == [NeverFits] * 3
    assert "21 KV cache pages of 4 positions needed, 20 exist\n  fix: give the component more pages" in str(
        results[0].error
    )
    assert lm.memory_stats()["pages_used"] == 0


def test_a_request_that_just_fits_is_served_beside_one_that_does_not():
    engine, lm = Engine(), make_component("llama", pages=20)
    prompt = prompts(3)[2]
    jobs = [Job({"tokens": prompt, "kv": engine.new_state(lm, KV), "sampling": Sampling(more)}) for more in (12, 11)]
    bad, good = engine.run(lm, lm.ops()["next_token"], jobs)
    assert isinstance(bad, JobFailed)
    written = write(engine, lm, jobs[1].arguments["kv"], good.values[0], Sampling(11), 10)
    assert [int(good.values[0]), *written] == reference_tokens("llama", prompt, Sampling(11))


def test_a_window_that_forgets_needs_no_room_for_all():
    engine, lm = Engine(max_batched_tokens=4), make_component("mistral", pages=4)
    cache = engine.new_state(lm, KV)
    assert len(write(engine, lm, cache, torch.tensor([5]), Sampling(60), 60)) == 60


# ---------------------------------------------------------------- another process
PROCESS = """
import functools, sys, torch
from mstar.engine.engine import Engine
from mstar.transfer.codec import ArenaCodec
from mstar.walk.states import KV
from tests.nn.lm.concurrent_requests import make_component
from tests.nn.kv.test_kv_migration import write

torch.set_num_threads(1)
made, engine, codec = functools.cache(make_component), Engine(), ArenaCodec()
for line in sys.stdin:
    name, data = line.split()
    params, token, exported = codec.unpack(bytes.fromhex(data), "tests")
    cache = engine.load(made(name), KV, exported)
    print(codec.pack(write(engine, made(name), cache, token, params), "tests").hex(), flush=True)
"""


@pytest.fixture
def other():
    command = [sys.executable, "-W", "ignore", "-c", PROCESS]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    yield made
    made.kill()
    made.communicate()


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_a_request_goes_on_in_another_process(other):
    codec = ArenaCodec()
    for name in ("llama", "mistral"):
        lm = make_component(name)
        for params in SAMPLING_PARAMS.values():
            engine = Engine()
            cache = engine.new_state(lm, KV)
            begun = write(engine, lm, cache, prompts(3)[2], params)
            last = torch.tensor(begun[-1:])
            data = codec.pack((params, last, engine.export(cache)), "other")
            assert codec.stats()["slots"] == (name == "llama"), "all its pages are one run of bytes; a window is small"
            other.stdin.write(f"{name} {data.hex()}\n")
            assert codec.unpack(bytes.fromhex(other.stdout.readline()), "other") == write(
                engine, lm, cache, last, params
            )
            assert codec.stats()["slots"] == 0
    codec.close()
