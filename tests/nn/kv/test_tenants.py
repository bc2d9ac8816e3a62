"""A KV cache keeps its tenant: forked, exported, swapped, recomputed and rolled back; its pages are never shared."""

import pytest
import torch

from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone
from mstar.models.qwen3_omni.talker_cache import TalkerKV
from mstar.nn.encoder import Encoder, TenantState
from mstar.nn.lm import eager_seq2seq
from mstar.nn.lm.sampler_state import SamplerState
from mstar.requests import Sampling
from mstar.transfer.values import pack, unpack
from mstar.walk.states import KV
from tests.nn.lm import test_seq2seq as whisper
from tests.nn.lm.concurrent_requests import make_component, prompts

GREEDY = Sampling(max_tokens=8)
PROMPT = prompts(3)[2]
PAGE_SIZE = 4
SWAP = {"swapped": 1 << 20, "dropped": 0}


class Owner:
    """A component and caches of tenants in it."""

    def __init__(self, monkeypatch, **sizes):
        self.lm = make_component("llama", page_size=PAGE_SIZE, **sizes)
        self._monkeypatch = monkeypatch

    def new_cache(self, tenant):
        cache = self.lm.kv()
        cache.tenant = tenant
        return cache

    def read(self, cache, tokens):
        return int(self.lm.next_token(tokens, cache, GREEDY))

    def computed(self, tenant, tokens):
        """Number of tokens that are computed, not taken from the prefix cache, when a tenant sends a prompt."""
        count, forward = 0, self.lm.decoder._forward

        def counted(embeddings, positions, last):
            nonlocal count
            count += embeddings.shape[1]
            return forward(embeddings, positions, last)

        with self._monkeypatch.context() as patch:
            patch.setattr(self.lm.decoder, "_forward", counted)
            cache = self.new_cache(tenant)
            self.read(cache, tokens)
            cache.free()
        return count

    def check_is_alices(self, tokens):
        """Check that the pages of a prompt are in the prefix cache of alice and of no other tenant."""
        for tenant in ("", "bob", "alic", "alice "):
            assert self.computed(tenant, tokens) == len(tokens), repr(tenant)
        assert self.computed("alice", tokens) <= len(tokens) - (len(tokens) - 1) // PAGE_SIZE * PAGE_SIZE
        assert self.computed("alice", tokens) == 1, "the last page is shared once its cache is freed"


@pytest.fixture
def owner(monkeypatch):
    return Owner(monkeypatch)


# ---------------------------------------------------------------- fork
@pytest.mark.parametrize("before", [2, 3, 4, 6, 30])
def test_pages_of_a_fork_belong_to_its_tenant(owner, before):
    """With fewer than four tokens before it, the fork fills the first page, whose key depends on the tenant."""
    cache = owner.new_cache("alice")
    owner.read(cache, PROMPT[:before])
    forked = cache.fork()
    cache.free()
    assert forked.tenant == "alice"
    owner.read(forked, PROMPT[before:])
    owner.check_is_alices(PROMPT)


def test_pages_of_a_fork_of_a_fork_belong_to_its_tenant(owner):
    cache = owner.new_cache("alice").fork().fork()
    owner.read(cache, PROMPT)
    assert cache.fork().tenant == "alice"
    owner.check_is_alices(PROMPT)


def test_a_fork_of_the_engine_belongs_to_its_tenant(owner):
    engine = Engine()
    state = engine.new_state(owner.lm, KV)
    state.tenant = "alice"
    forked = engine.fork(state)
    (result,) = engine.run(owner.lm, owner.lm.ops()["next_token"], [job(forked, PROMPT)])
    assert isinstance(result, JobDone)
    owner.check_is_alices(PROMPT)


def job(cache, tokens):
    return Job({"tokens": tokens, "kv": cache, "sampling": GREEDY})


# ---------------------------------------------------------------- export
@pytest.mark.parametrize("before", [2, 6, 30])
def test_pages_of_an_exported_cache_belong_to_its_tenant(owner, monkeypatch, before):
    there = Owner(monkeypatch)
    cache = owner.new_cache("alice")
    owner.read(cache, PROMPT[:before])
    moved = there.lm.load_state(KV, unpack(pack(cache.export())))
    assert moved.tenant == "alice"
    there.read(moved, PROMPT[before:])
    there.check_is_alices(PROMPT)


def test_a_fork_of_an_exported_cache_belongs_to_its_tenant(owner, monkeypatch):
    there = Owner(monkeypatch)
    moved = there.lm.load_state(KV, unpack(pack(owner.new_cache("alice").fork().export()))).fork()
    there.read(moved, PROMPT)
    there.check_is_alices(PROMPT)


# ---------------------------------------------------------------- eviction
@pytest.mark.parametrize("swap_bytes", SWAP.values(), ids=SWAP)
@pytest.mark.parametrize("before", [2, 30])
def test_pages_of_an_evicted_cache_belong_to_its_tenant(monkeypatch, swap_bytes, before):
    owner = Owner(monkeypatch, swap_bytes=swap_bytes)
    cache = owner.new_cache("alice")
    owner.read(cache, PROMPT[:before])
    cache.evict()
    assert cache.is_dropped == (swap_bytes == 0)
    owner.lm.restore([cache])
    assert cache.tenant == "alice"
    owner.read(cache, PROMPT[before:])
    owner.check_is_alices(PROMPT)


@pytest.mark.parametrize("swap_bytes", SWAP.values(), ids=SWAP)
def test_a_fork_of_an_evicted_cache_belongs_to_its_tenant(monkeypatch, swap_bytes):
    owner = Owner(monkeypatch, swap_bytes=swap_bytes)
    cache = owner.new_cache("alice")
    owner.read(cache, PROMPT[:3])
    cache.evict()
    forked = cache.fork()
    owner.lm.restore([forked])
    owner.read(forked, PROMPT[3:])
    owner.check_is_alices(PROMPT)


@pytest.mark.parametrize("swap_bytes", SWAP.values(), ids=SWAP)
def test_a_preempted_request_shares_no_pages_with_another_tenant(monkeypatch, swap_bytes):
    """Two requests with one prompt do not fit: each preempts the other, and both compute the whole prompt."""
    owner, engine = Owner(monkeypatch, pages=24, swap_bytes=swap_bytes), Engine()
    caches = {}
    for tenant in ("alice", "bob"):
        caches[tenant] = engine.new_state(owner.lm, KV)
        caches[tenant].tenant = tenant
    token = dict.fromkeys(caches, PROMPT)
    for _ in range(4):
        for tenant, cache in caches.items():
            (result,) = engine.run(owner.lm, owner.lm.ops()["next_token"], [job(cache, token[tenant])])
            token[tenant] = result.values[0]
            other = caches["bob" if tenant == "alice" else "alice"]
            assert not {*cache.table.pages} & {*other.table.pages}
            assert cache.tenant == tenant
    assert not all(cache.is_resident for cache in caches.values()), "the memory was enough for both"
    assert token["alice"] == token["bob"]


# ---------------------------------------------------------------- rollback
def test_pages_of_a_cache_that_was_rolled_back_belong_to_its_tenant(owner):
    cache = owner.new_cache("alice")
    snapshot = cache.snapshot()
    owner.read(cache, PROMPT[:10] + 1)
    cache.rollback(snapshot)
    assert cache.tenant == "alice"
    owner.read(cache, PROMPT)
    owner.check_is_alices(PROMPT)


# ---------------------------------------------------------------- other states
def changed_copies(component, state):
    """The state after each operation of the runtime."""
    forked = state.fork()
    rolled_back = state.fork()
    rolled_back.rollback(rolled_back.snapshot())
    return forked, rolled_back, component.load_state(type(state), unpack(pack(state.export())))


def test_a_tenant_state_keeps_its_tenant():
    state = TenantState()
    state.tenant = "alice"
    assert [one.tenant for one in changed_copies(Encoder(lambda: None), state)] == ["alice"] * 3


def test_a_cross_attention_cache_keeps_its_tenant(monkeypatch):
    monkeypatch.setattr(eager_seq2seq, "DecoderHalf", whisper._writing_half)
    lm = whisper.component()
    (cache,) = whisper.encoded_caches(lm, 1)
    cache.tenant = "alice"
    lm.next_token(torch.arange(3, 9), cache, GREEDY)
    cache.evict()
    lm.restore([cache])
    assert cache.tenant == "alice"
    assert [one.tenant for one in changed_copies(lm, cache)] == ["alice"] * 3


def test_a_talker_cache_keeps_its_tenant(owner):
    cache = TalkerKV(owner.lm.decoder.store, SamplerState(None))
    cache.tenant = "alice"
    assert cache.fork().tenant == "alice"
    assert cache.export().tenant == "alice"
