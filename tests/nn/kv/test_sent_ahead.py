"""Pages of a KV cache that are sent while the rest of it is computed: the cache moves without them."""

import pytest
import torch

from mstar.engine.engine import Engine
from mstar.engine.jobs import UNFINISHED, Job, JobDone
from mstar.nn.kv.kv_cache import MIN_SENT_AHEAD
from mstar.requests import Sampling
from mstar.transfer.values import pack, unpack
from mstar.walk.states import KV
from tests.nn.lm.concurrent_requests import make_component, reference_tokens

PROMPT = torch.arange(200) * 7 % 90
SAMPLING = Sampling(max_tokens=8)
THERE = "there.0"


def sent(exported):
    return unpack(pack(exported))


def read_in_chunks(engine, lm, prompt, on_chunk):
    """Read a prompt in chunks of 80 tokens; returns the cache and the first token."""
    cache = engine.new_state(lm, KV)
    job = Job({"tokens": prompt, "kv": cache, "sampling": SAMPLING})
    while (result := engine.run(lm, lm.ops()["next_token"], [job])[0]) is UNFINISHED:
        on_chunk(cache)
    assert isinstance(result, JobDone), result
    return cache, result.values[0]


def write(engine, lm, cache, token, count):
    written = []
    for _ in range(count):
        (result,) = engine.run(lm, lm.ops()["next_token"], [Job({"tokens": token, "kv": cache, "sampling": SAMPLING})])
        token = result.values[0]
        written.append(int(token))
    return written


def move(here, there, *, lose=frozenset(), page_bytes=None):
    """Move a cache after its prompt, with the pages that are sent ahead but for those with these numbers."""
    first, second, parts = Engine(max_batched_tokens=80), Engine(), []

    def send_ahead(cache):
        parts.append(first.export_ahead(cache, THERE))
        if parts[-1] is not None and len(parts) - 1 not in lose:
            second.load_ahead(there, KV, sent(parts[-1]))

    cache, token = read_in_chunks(first, here, PROMPT, send_ahead)
    rest = first.export(cache, THERE)
    moved = second.load(there, KV, sent(rest), "")
    assert write(second, there, moved, token, 7) == reference_tokens("llama", PROMPT, SAMPLING)[1:]
    there.decoder.store.pool.check()
    here.decoder.store.pool.check()
    return parts, rest, moved, first.export(cache)


def test_only_the_rest_moves_after_the_last_chunk():
    parts, rest, _, whole = move(make_component("llama"), make_component("llama"))
    assert [part and len(part.keys) * part.page_size for part in parts] == [80, 80]
    assert (rest.sent_ahead, rest.length) == (160, 200)
    assert len(rest.data) * 5 == len(whole.data)
    assert sum(len(part.data) for part in parts) + len(rest.data) == len(whole.data)


@pytest.mark.parametrize("lose", [{0}, {1}, {0, 1}])
def test_a_cache_without_all_of_its_pages_is_computed_again(lose, monkeypatch):
    there = make_component("llama")
    computed = []
    recompute = there.decoder._recompute
    monkeypatch.setattr(there.decoder, "_recompute", lambda cache: (computed.append(cache), recompute(cache)))
    _, _, moved, _ = move(make_component("llama"), there, lose=lose)
    assert computed == [moved]


def test_pages_of_another_size_are_not_kept():
    there = make_component("llama", page_size=8)
    move(make_component("llama"), there)


def test_pages_that_do_not_fit_are_not_kept():
    there = make_component("llama", pages=40)
    engine = Engine()
    other = engine.new_state(there, KV)
    write(engine, there, other, torch.arange(120) % 80, 1)
    used = there.decoder.store.page_counts()
    here, parts = make_component("llama"), []
    first = Engine(max_batched_tokens=80)
    read_in_chunks(first, here, PROMPT, lambda cache: parts.append(first.export_ahead(cache, THERE)))
    engine.load_ahead(there, KV, sent(parts[0]))
    assert there.decoder.store.page_counts() == used
    there.decoder.store.pool.check()
    assert other.is_resident


def test_kept_pages_make_room_for_requests():
    there, here = make_component("llama", pages=60), make_component("llama")
    first, engine = Engine(max_batched_tokens=80), Engine()
    read_in_chunks(
        first, here, PROMPT, lambda cache: engine.load_ahead(there, KV, sent(first.export_ahead(cache, THERE)))
    )
    assert there.decoder.store.pool.free_pages == 60
    cache = engine.new_state(there, KV)
    prompt = torch.arange(220) % 80
    written = write(engine, there, cache, prompt, 1)
    assert written == reference_tokens("llama", prompt, Sampling(max_tokens=1))


def test_a_fork_knows_what_was_sent_and_a_rollback_forgets_it():
    here, engine = make_component("llama"), Engine(max_batched_tokens=80)
    cache, _ = read_in_chunks(engine, here, PROMPT, lambda cache: engine.export_ahead(cache, THERE))
    assert cache.fork().export_rest(THERE).sent_ahead == 160
    assert cache.export_rest("elsewhere.0").sent_ahead == 0
    here.hidden_states(PROMPT, shorter := here.kv())
    snapshot = shorter.snapshot()
    here.hidden_states(PROMPT, shorter)
    assert len(shorter.export_ahead(THERE).keys) == 100
    shorter.rollback(snapshot)
    assert shorter.export_rest(THERE).sent_ahead == 200


def test_short_parts_and_caches_without_a_prefix_cache_are_not_sent():
    here = make_component("llama")
    here.hidden_states(PROMPT[: MIN_SENT_AHEAD - 1], cache := here.kv())
    assert cache.export_ahead(THERE) is None
    embedded = here.kv()
    here.hidden_states_from_embeddings(here.embed(PROMPT), embedded)
    assert embedded.export_ahead(THERE) is None
    windows = make_component("mistral")
    windows.hidden_states(PROMPT, cache := windows.kv())
    assert cache.export_ahead(THERE) is None
