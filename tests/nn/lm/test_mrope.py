"""Positions with three axes: rows and tokens give what the library gives, and so does a cache that was dropped."""

import pytest
import torch
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as omni

from mstar.nn.compile import graph_capture
from mstar.nn.compile.captured_forward import CapturedForward
from mstar.nn.compile.graph_capture import eager_forward
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.mrope import ROPE_AXES, MRopeDecoder, MRopeModel
from mstar.requests import Sampling
from mstar.walk.batching import Layout

ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
SHAPE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}
SHAPE |= {"moe_intermediate_size": 16, "rope_parameters": ROPE, "max_position_embeddings": 256}
LEVELS, SIZE = 1, 32
GREEDY = Sampling(max_tokens=8)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    model = omni.Qwen3OmniMoeThinkerTextModel(omni.Qwen3OmniMoeTextConfig(**SHAPE)).eval()
    head = torch.nn.Linear(SIZE, SHAPE["vocab_size"], bias=False)
    for weight in (*model.parameters(), *head.parameters()):
        if weight.ndim > 1:
            torch.nn.init.normal_(weight.data, std=1.5 * weight.shape[-1] ** -0.5)
    return model.requires_grad_(requires_grad=False), head.requires_grad_(requires_grad=False)


@pytest.fixture(scope="module")
def decoder(network):
    """As the library runs it: to record it takes longer than these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_capture, "flatten", lambda network, **_: CapturedForward(eager_forward(network)))
        return MRopeDecoder(
            MRopeModel(*network, levels=LEVELS, layer=1), PagePool(32, 4), swap_bytes=0, is_deterministic=False
        )


@pytest.fixture(scope="module")
def rows(decoder):
    """A picture of two by two between texts: its places, and what it shows behind the first layer."""
    given = decoder.embed(torch.arange(3, 13))
    places = torch.tensor([[0, 0, 0]] * 3 + [[3, 3, 3], [3, 3, 4], [3, 4, 3], [3, 4, 4]] + [[5] * 3, [6] * 3, [7] * 3])
    given[:, SIZE : SIZE + ROPE_AXES] = places - torch.arange(10)[:, None] + torch.tensor([0, 1, 2] + [0] * 7)[:, None]
    given[3:7, SIZE + ROPE_AXES :] = torch.randn((4, SIZE), generator=torch.Generator().manual_seed(1))
    return given


def step(decoder, given, *caches):
    """Logits of what follows what is given: rows for one cache, or a token for each."""
    counts = (len(given),) if given.ndim > 1 else (1,) * len(caches)
    return decoder.next_token(given, list(caches), [GREEDY] * len(caches), Layout(len(caches), counts))[1]


def written(decoder, cache, logits):
    """The logits of all that follows, token by token."""
    every = [logits]
    while len(every) < 6:
        every.append(step(decoder, every[-1].argmax(-1), cache))
    return torch.cat(every)


@torch.inference_mode()
def reference_outputs(network, rows, tokens):
    """The library's hidden states and logits for all of it at once."""
    model, head = network
    model.config._attn_implementation = "sdpa"
    embeddings = torch.cat([rows[:, :SIZE], model.embed_tokens(tokens)])[None]
    away = torch.cat([rows[:, SIZE : SIZE + ROPE_AXES], rows[-1:, SIZE : SIZE + ROPE_AXES].expand(len(tokens), -1)])
    shown = torch.nn.functional.pad(rows[:, SIZE + ROPE_AXES :], (0, 0, 0, len(tokens)))
    output = model(
        inputs_embeds=embeddings,
        position_ids=(torch.arange(embeddings.shape[1])[:, None] + away).T[:, None],
        deepstack_visual_embeds=[shown[None]],
        output_hidden_states=True,
        use_cache=False,
    )
    model.config._attn_implementation = MRopeDecoder.attention
    return output.hidden_states[1][0], head(output.last_hidden_state[0])


def assert_same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def answer(decoder, rows):
    cache = decoder.new_cache(None)
    return written(decoder, cache, step(decoder, rows, cache))


def test_rows_and_the_text_after_them_are_where_the_library_has_them(decoder, network, rows, answer):
    hidden, logits = reference_outputs(network, rows, answer[:-1].argmax(-1))
    assert_same(answer, logits[len(rows) - 1 :])
    layout = Layout(1, (len(rows),))
    assert_same(
        decoder.next_token_with_hidden(rows, [decoder.new_cache(None)], [GREEDY], layout)[2], hidden[: len(rows)]
    )


def test_places_and_what_is_shown_matter(decoder, rows, answer):
    for changed in (slice(SIZE, SIZE + ROPE_AXES), slice(SIZE + ROPE_AXES, None)):
        other = rows.clone()
        other[:, changed] = 0
        assert (step(decoder, other, decoder.new_cache(None)) - answer[:1]).abs().max() > 1e-2


def test_a_prompt_in_pieces_and_a_cache_that_was_dropped_go_on_as_they_would(decoder, rows, answer):
    cache = decoder.new_cache(None)
    decoder.next_token(rows[:5], [cache], [GREEDY], Layout(1, (5,), frozenset({0})))
    every = [step(decoder, rows[5:], cache)]
    for _ in range(5):
        cache.evict()
        assert cache.is_dropped
        decoder.restore([cache])
        every.append(step(decoder, every[-1].argmax(-1), cache))
    assert_same(torch.cat(every), answer)


def test_requests_with_and_without_pictures_share_a_forward(decoder, rows, answer):
    plain, mixed, fresh = (decoder.new_cache(None) for _ in range(3))
    alone = written(decoder, plain, step(decoder, torch.tensor([5]), plain))
    every = [torch.cat([step(decoder, torch.tensor([5]), fresh), step(decoder, rows, mixed)])]
    for _ in range(5):
        every.append(step(decoder, every[-1].argmax(-1), fresh, mixed))
    assert_same(torch.stack(every, 1), torch.stack([alone, answer]))
