"""A library's encoder as a component gives what the library gives, alone, in a crowd, filled up, and from its cache."""

import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import transformers as t
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from mstar import Float, Int64, Latents, Model, Tensor, op, walk
from mstar.errors import LoadError
from mstar.nn.encoder import ContentCache, Encoder, content_key, hash_embeddings
from mstar.nn.pretend_gpu import PretendTensor, count_traffic, pretend_gpu
from mstar.testing.parity import parity_all

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
PICTURE = {"image_size": 16, "patch_size": 4}
WHISPER = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
WAVE = SIZES | {"conv_dim": (8, 8), "conv_kernel": (5, 3), "conv_stride": (3, 2), "num_feat_extract_layers": 2}
WAVE |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "do_stable_layer_norm": True}

PICTURES = {
    "dinov2": lambda: t.Dinov2Model(t.Dinov2Config(**SIZES, **PICTURE)),
    "siglip": lambda: t.SiglipVisionModel(t.SiglipVisionConfig(**SIZES, **PICTURE)),
    "clip": lambda: t.CLIPVisionModel(t.CLIPVisionConfig(**SIZES, **PICTURE)),
}
SEQUENCES = {
    "bert": ("text", lambda: t.BertModel(t.BertConfig(vocab_size=50, **SIZES))),
    "wav2vec2": ("audio", lambda: t.Wav2Vec2Model(t.Wav2Vec2Config(feat_extract_norm="layer", **WAVE))),
    "hubert": ("audio", lambda: t.HubertModel(t.HubertConfig(feat_extract_norm="layer", **WAVE))),
}


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def bert():
    return seeded(SEQUENCES["bert"][1])


def hidden(library, value):
    with torch.inference_mode():
        return library(value[None]).last_hidden_state[0]


def component(make, **how):
    encoder = Encoder(lambda: seeded(make), **how)
    encoder.name = "encoder"
    return encoder


def watched(encoder):
    """The shapes that the network runs, as they come."""
    ran = []
    encoder.network.register_forward_pre_hook(
        lambda _, __, given: ran.append(tuple(given[encoder.network.main_input_name].shape)), with_kwargs=True
    )
    return ran


def encode(encoder, name, inputs, tenants=None):
    """One batch of an op's calls."""
    the_op = encoder.ops()[name]
    column = next(iter(the_op.signature.params))
    results = the_op.run(encoder, {column: inputs, "tenant": tenants or [""] * len(inputs)}, len(inputs))
    return [result for (result,) in results]


def sequence(name, length):
    return torch.randint(1, 50, (length,)) if name == "text" else torch.randn(length)


@pytest.mark.parametrize("name", PICTURES)
def test_a_cpu_runs_one_picture_after_the_other(name):
    library = seeded(PICTURES[name])
    encoder = component(PICTURES[name])
    ran = watched(encoder)
    pictures = [torch.randn(3, 16, 16) for _ in range(3)]
    for result, picture in zip(encode(encoder, "image", pictures), pictures, strict=True):
        torch.testing.assert_close(result, hidden(library, picture))
    assert ran == [(1, 3, 16, 16)] * 3


def test_whisper_hears_a_fixed_window_so_windows_are_never_filled_up():
    config = t.WhisperConfig(**WHISPER, num_mel_bins=8, max_source_positions=10)
    make = lambda: WhisperEncoder(config)  # noqa: E731 - as an author writes it
    library = seeded(make)
    encoder = component(make, buckets=[64])
    ran = watched(encoder)
    sounds = [torch.randn(8, 20) for _ in range(3)]
    for result, sound in zip(encode(encoder, "spectrum", sounds), sounds, strict=True):
        torch.testing.assert_close(result, hidden(library, sound))
    assert ran == [(1, 8, 20)] * 3
    with pytest.raises(ValueError, match="length 20"):
        encoder.spectrum(torch.randn(8, 12))


@pytest.mark.parametrize("buckets", [(), (24, 48, 96)])
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_of_any_length_give_what_each_gives_alone(name, buckets):
    kind, make = SEQUENCES[name]
    library = seeded(make)
    encoder = component(make, buckets=buckets)
    ran = watched(encoder)
    lengths = [20, 24, 31, 47, 31, 90, 100, 48]
    inputs = [sequence(kind, length) for length in lengths]
    for result, value in zip(encode(encoder, kind, inputs), inputs, strict=True):
        torch.testing.assert_close(result, hidden(library, value), rtol=1e-4, atol=1e-5)
    sizes = {(1, 24), (1, 48), (1, 96), (1, 100)} if buckets else {(1, n) for n in lengths}
    assert {*ran} - {(1, 20)} == sizes - {(1, 20)}, "the shortest also ran alone, once, to try the filling up"


def test_a_network_that_filling_up_changes_is_refused_and_right_without():
    make = lambda: t.Wav2Vec2Model(t.Wav2Vec2Config(feat_extract_norm="group", **WAVE))  # noqa: E731
    library = seeded(make)
    sounds = [torch.randn(length) for length in (40, 57, 40)]
    message = r"padding changes the hidden states of Wav2Vec2Model: relative difference \de[+-]\d\d"
    for _ in range(2):
        with pytest.raises(LoadError, match=message):
            encode(component(make, buckets=[64]), "audio", sounds)
    for result, sound in zip(encode(component(make), "audio", sounds), sounds, strict=True):
        torch.testing.assert_close(result, hidden(library, sound), rtol=1e-4, atol=1e-5)


def test_what_was_encoded_before_is_given_again_bit_by_bit_and_only_the_rest_runs():
    encoder = component(PICTURES["dinov2"])
    ran = watched(encoder)
    a, b, c = torch.randn(3, 3, 16, 16)
    first = encode(encoder, "image", [a, b, a])
    assert ran == [(1, 3, 16, 16)] * 2, "what is twice in a batch runs once"
    assert torch.equal(first[0], first[2])
    again = encode(encoder, "image", [b.clone(), c, a])
    assert ran[2:] == [(1, 3, 16, 16)]
    assert torch.equal(again[0], first[1])
    assert torch.equal(again[2], first[0])
    encode(encoder, "image", [c, a, b])
    assert len(ran) == 3


def test_tenants_share_nothing():
    encoder = component(PICTURES["dinov2"])
    ran = watched(encoder)
    picture = torch.randn(3, 16, 16)
    encode(encoder, "image", [picture, picture, picture], ["a", "b", "a"])
    assert ran == [(1, 3, 16, 16)] * 2
    encoder.image(picture, tenant="b")
    assert len(ran) == 2
    encoder.image(picture)
    assert len(ran) == 3


def test_a_key_depends_on_content_shape_dtype_and_tenant_and_on_nothing_else():
    value = torch.arange(8, dtype=torch.int32)
    others = [value + 1, value.view(2, 4), value.view(torch.float32), torch.arange(8), value[:4]]
    keys = {content_key(value, tenant) for tenant in ("", "a", "b")} | {content_key(other, "") for other in others}
    assert len(keys) == 3 + len(others)
    strided = torch.stack([value, value + 5], 1)[:, 0]
    assert content_key(strided, "") == content_key(value, "")


def test_the_cache_holds_so_many_bytes_of_what_was_used_last():
    cache, chosen, used = ContentCache(100), random.Random(0), {}
    for step in range(2000):
        number = chosen.randrange(12)
        key, tensor = bytes([number]), torch.full((number * 10,), number, dtype=torch.uint8)
        cached = cache.get(key)
        assert (cached is not None) == (key in used), step
        if cached is None:
            cache.put(key, tensor)
        elif key in used:
            assert torch.equal(cached, tensor)
            used.pop(key)
        if len(tensor) <= 100:
            used[key] = len(tensor)
        while sum(used.values()) > 100:
            used.pop(next(iter(used)))
        assert cache.size_bytes == sum(used.values())


def test_a_key_that_is_put_again_counts_once():
    cache = ContentCache(100)
    for key, size in ((b"a", 30), (b"b", 20), (b"a", 40), (b"a", 40), (b"c", 40)):
        cache.put(key, torch.zeros(size, dtype=torch.uint8))
    assert cache.size_bytes == 100
    assert [cache.get(key).nbytes for key in (b"b", b"a", b"c")] == [20, 40, 40]
    cache.put(b"d", torch.zeros(1, dtype=torch.uint8))
    assert cache.get(b"b") is None, "the least recently used one is evicted first"
    assert cache.size_bytes == 81


def test_a_key_that_is_put_again_is_the_most_recently_used():
    cache = ContentCache(60)
    for key in (b"a", b"b", b"a", b"c", b"d"):
        cache.put(key, torch.zeros(20, dtype=torch.uint8))
    assert cache.get(b"b") is None
    assert cache.get(b"a") is not None


class Likeness(Model):
    """What a picture and a text have in common, in whole numbers: batching may change the last bits of others."""

    def __init__(self, cache_bytes):
        self.encoder = Encoder(lambda: seeded(PICTURES["clip"]).double(), cache_bytes=cache_bytes)
        self.reader = Reader(lambda: bert().double(), buckets=[8, 16], cache_bytes=cache_bytes)

    @walk
    def compare(self, picture: Float[Tensor, "C H W"], text: Int64[Tensor, "T"], tenant: str) -> Iterator[Latents]:
        yield Latents(self.reader.compare(self.encoder.image(picture, tenant), self.reader.text(text, tenant)))


class Reader(Encoder):
    @op
    def compare(self, seen: Float[Tensor, "P D"], read: Float[Tensor, "T E"]) -> Int64[Tensor, "P T"]:
        return (seen @ read.T * 1e6).round().long()


@pytest.mark.parametrize("cache_bytes", [0, 6000])
def test_a_walk_is_served_as_it_runs(cache_bytes):
    torch.manual_seed(1)
    pictures = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    texts = [sequence("text", length) for length in (3, 9, 16, 5, 20, 9)]
    requests = [
        {"picture": pictures[number % 3], "text": text, "tenant": "ab"[number % 2]} for number, text in enumerate(texts)
    ]
    parity_all(Likeness(cache_bytes), requests, schedules=3)


def test_importing_it_loads_no_tensor_library():
    code = "import sys, mstar.nn.encoder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rows_are_numbered_by_their_content_above_all_tokens():
    rows = torch.randn(5, 8)
    rows[3] = rows[1]
    for kind in (torch.float32, torch.bfloat16):
        numbers = hash_embeddings(rows.to(kind))
        assert numbers.dtype == torch.int64
        assert int(numbers.min()) > 1 << 60
        assert len({*numbers.tolist()}) == 4
        assert numbers[3] == numbers[1]
        assert torch.equal(numbers[2:], hash_embeddings(rows.to(kind)[2:])), "whatever is beside it"


# ---------------------------------------------------------------- on a device
@pytest.mark.parametrize("name", [*PICTURES, *SEQUENCES])
def test_results_on_a_device_are_those_of_the_cpu(name):
    op_name, make = ("image", PICTURES[name]) if name in PICTURES else SEQUENCES[name]
    encoder, expected = (component(make, buckets=(32,)) for _ in range(2))
    encoder.device = pretend_gpu()
    inputs = [torch.randn(3, 16, 16) if name in PICTURES else sequence(op_name, length) for length in (20, 30, 40, 20)]
    for _ in range(2):  # from the network, then from the cache
        results = encode(encoder, op_name, inputs)
        assert all(isinstance(result, PretendTensor) for result in results)
        for result, other in zip(results, encode(expected, op_name, inputs), strict=True):
            torch.testing.assert_close(result.cpu(), other, rtol=0, atol=1e-5)
    assert len(encoder.cache._entries) == 4
    assert all(isinstance(value, PretendTensor) for value in encoder.cache._entries.values())


def test_inputs_on_a_device_are_not_hashed_without_a_cache():
    encoder = component(PICTURES["siglip"], cache_bytes=0)
    encoder.device = pretend_gpu()
    inputs = [torch.randn(3, 16, 16).to(pretend_gpu())] * 2
    encode(encoder, "image", inputs)
    with count_traffic() as traffic:
        first, second = encode(encoder, "image", inputs)
    assert torch.equal(first.cpu(), second.cpu())
    assert not traffic.to_host
    assert sum(traffic.syncs.values()) == 1, traffic.syncs  # the check of all results
