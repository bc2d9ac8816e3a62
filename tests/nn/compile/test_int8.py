"""Products in 8-bit integers: exact where they are integers, NaN where there are no numbers, and close in the end."""

import copy
import functools
import gc
import weakref

import pytest
import torch

from mstar.errors import LoadError, NotFinite
from mstar.nn import kernel_library, native
from mstar.nn.compile.int8 import pack
from mstar.nn.kv.paged_attention import extend_caches
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.weights.sources import Weights
from mstar.requests import Sampling
from tests.nn.lm.model_families import SMALL, network

TYPES = [torch.float32, torch.bfloat16]
SHAPES = [(1, 1, 1), (1, 32, 64), (5, 17, 100), (16, 48, 32), (17, 33, 64), (33, 96, 130), (70, 40, 320)]
TEXT = (
    "The sea covers most of the earth. Its water is salty, and it moves with the tides, which follow the moon. Long "
    "ago people crossed it in small boats, guided by the stars and the flight of birds. Today large ships carry "
    "goods from one continent to another, and cables on its floor carry messages. Many kinds of animals live in it, "
    "from tiny plankton to the blue whale, the largest animal that has ever lived. Plants grow only near the "
    "surface, where light can reach them. Farther down it is dark and cold, and the pressure is great. Even there, "
    "life is found: around hot springs on the ocean floor live worms, crabs and bacteria that need no sunlight at "
    "all. Scientists believe that life on earth may have begun in such a place. We know the surface of the moon "
    "better than the bottom of the sea, and every expedition finds species that nobody has seen before. "
)
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
ANSWERS = {
    "What is the capital of France?": "Paris",
    "What is 2 + 3?": "5",
    "Which language is spoken in Spain?": "Spanish",
}
NAN, INF = float("nan"), float("inf")


def unpacked(tiles, rows, size):
    """The integers of a matrix, [out, in], from its tiles."""
    blocks, depth = tiles.shape[:2]
    return tiles.permute(0, 3, 1, 2, 4).reshape(blocks * 16, depth * 64)[:rows, :size]


def scales_of(x):
    """What multiplies the integers of x back: one scale for each 192 neighbours."""
    return torch.cat(
        [(part.abs().amax(-1, keepdim=True) / 127).expand(part.shape) for part in x.float().split(192, -1)], -1
    )


def quantised(x):
    """The integers of x: what comes out of a product with the identity, unscaled."""
    tiles, own = pack(torch.eye(x.shape[-1]))
    return (native.linear_int8(x.float(), tiles, own, None) / scales_of(x)).round()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_matrix_is_rounded_to_integers_row_by_row(shape):
    _, rows, size = shape
    torch.manual_seed(0)
    weight = torch.randn(rows, size)
    tiles, scales = pack(weight)
    whole = unpacked(tiles, rows, size)
    assert torch.equal(whole.abs().amax(1), torch.full((rows,), 127, dtype=torch.int8))
    assert ((weight / scales[:, None] - whole).abs() <= 0.5001).all()
    assert tiles.shape[0] % 2 == 0, "tiles are read in pairs"
    assert tiles.float().abs().sum() == whole.float().abs().sum(), "the rest is zero"


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_each_group_of_activations_is_rounded_with_its_own_scale(dtype):
    torch.manual_seed(0)
    x = (torch.randn(40, 300) * torch.logspace(-20, 20, 12000).view(40, 300)).to(dtype)
    whole = quantised(x)
    for part in whole.split(192, -1):
        assert part.abs().amax(1).tolist() == [127.0] * 40
    assert ((x.float() / scales_of(x) - whole).abs() <= 0.5001).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_that_of_the_integers(shape, dtype):
    rows, columns, size = shape
    torch.manual_seed(1)
    x, weight, bias = torch.randn(1, rows, size).to(dtype), torch.randn(columns, size), torch.randn(columns).to(dtype)
    tiles, own = pack(weight)
    right = ((quantised(x) * scales_of(x)).double() @ unpacked(tiles, columns, size).double().T) * own
    got = native.linear_int8(x, tiles, own, bias)
    assert got.dtype == dtype
    tolerance = 4 * torch.finfo(dtype).eps * (right.abs().max() + bias.abs().max())
    assert (got.double() - (right + bias.double())).abs().max() <= tolerance
    assert (native.linear_int8(x, tiles, own, None).double() - right).abs().max() <= tolerance


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_row_without_numbers_gives_none_and_spares_the_others(dtype):
    torch.manual_seed(2)
    tiles, scales = pack(torch.randn(40, 70))
    x = torch.randn(20, 70).to(dtype)
    bias = torch.randn(40).to(dtype)
    right = native.linear_int8(x, tiles, scales, bias)
    bad = {1: NAN, 4: INF, 17: -INF, 19: -NAN}
    for row, value in bad.items():
        x[row, row] = value
    got = native.linear_int8(x, tiles, scales, bias)
    assert [row for row in range(20) if got[row].isnan().all()] == [*bad]
    good = [row for row in range(20) if row not in bad]
    assert torch.equal(got[good], right[good])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_of_zeros_and_of_almost_nothing_give_the_bias(dtype):
    tiles, scales = pack(torch.cat([torch.randn(39, 70), torch.zeros(1, 70)]))
    bias = torch.randn(40).to(dtype)
    x = torch.stack([torch.zeros(70), torch.full((70,), 1e-38), torch.full((70,), -1e-40), torch.randn(70)]).to(dtype)
    got = native.linear_int8(x, tiles, scales, bias)
    assert torch.equal(got[:3], bias.expand(3, 40))
    assert got[3, 39] == bias[39], "a row of zeros in the weight"


def test_the_batch_does_not_change_a_row():
    torch.manual_seed(3)
    tiles, scales = pack(torch.randn(50, 130))
    x = torch.randn(37, 130)
    alone = torch.cat([native.linear_int8(row[None], tiles, scales, None) for row in x])
    assert torch.equal(native.linear_int8(x, tiles, scales, None), alone)


def logits(decoder, tokens):
    """The logits after each token of a text."""
    with torch.inference_mode():
        batch = extend_caches(decoder.store, [decoder.new_cache(None)], [len(tokens)])
        return decoder._run(decoder.embed(tokens), batch, torch.arange(len(tokens)))[0].float()


@pytest.fixture(scope="module")
def small():
    """A small decoder in int8, and what is left of the weights it was made of."""
    made = copy.deepcopy(network("llama"))
    weights = {name: weakref.ref(weight) for name, weight in made.named_parameters() if weight.ndim == 2}
    lm = CausalLM(lambda: made, eos_token_id=2, pages=64, int8=True)
    lm.kv()
    lm._loader = made = None
    gc.collect()
    return lm, {name for name, weight in weights.items() if weight() is not None}


def test_a_decoder_in_int8_is_close_to_what_it_was(small):
    torch.manual_seed(4)
    tokens = torch.randint(3, 97, (60,))
    with torch.inference_mode():
        right = network("llama")(tokens[None]).logits[0]
    got = logits(small[0].decoder, tokens)
    assert 1e-4 < (got - right).norm() / right.norm() < 0.1


def test_its_weights_are_let_go(small):
    assert small[1] == {"model.embed_tokens.weight"}


def test_a_nan_reaches_the_guard(small):
    lm, _ = small
    embeddings = torch.zeros(3, SMALL["hidden_size"])
    embeddings[2, 5] = NAN
    with pytest.raises(NotFinite, match="the largest logit is nan"):
        lm.next_token_from_embeddings(embeddings, lm.kv(), Sampling())


def test_int8_runs_need_the_kernels():
    lm = CausalLM(lambda: copy.deepcopy(network("llama")).double(), eos_token_id=2, int8=True)
    with pytest.raises(LoadError, match="int8 mode needs the fused kernels"):
        lm.kv()


def test_int8_is_refused_on_a_cpu_on_which_it_is_slower_than_bf16(monkeypatch):
    monkeypatch.setattr(native, "supports_int8_matmul", lambda: False)
    lm = CausalLM(lambda: copy.deepcopy(network("llama")), eos_token_id=2, int8=True)
    with pytest.raises(LoadError, match=r"neither AMX nor AVX-512 VNNI\n  fix: set int8=False"):
        lm.kv()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [pytest.param(("-mno-amx-int8",), marks=pytest.mark.nightly), ("-mno-amx-int8", "-mno-avx512vnni")],
    ids=["no AMX", "no VNNI"],
)
def test_without_int8_instructions_the_sums_are_the_same(monkeypatch, tmp_path, flags):
    torch.manual_seed(5)
    tiles, scales = pack(torch.randn(50, 130))
    x, bias = torch.randn(37, 130), torch.randn(50)
    right = native.linear_int8(x, tiles, scales, bias)
    monkeypatch.setattr(kernel_library, "_FLAGS", (*kernel_library._FLAGS, *flags))
    monkeypatch.setattr(native, "cache_directory", lambda: tmp_path)
    for name in ("_library", "kernel"):
        monkeypatch.setattr(native, name, functools.cache(getattr(native, name).__wrapped__))
    assert torch.allclose(native.linear_int8(x, tiles, scales, bias), right, rtol=1e-6, atol=1e-6)
    assert [*tmp_path.iterdir()], "built for this test"


def answer(lm, tokenizer, question):
    """What it writes, up to two dozen tokens."""
    kv, params, written = lm.kv(), Sampling(), []
    token = lm.next_token(torch.tensor(tokenizer.encode(CHAT.format(question)).ids), kv, params)
    while int(token) != 2 and len(written) < 24:
        written.append(int(token))
        token = lm.next_token(token, kv, params)
    return tokenizer.decode(written)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_smollm2_in_int8_agrees_with_itself_in_float32():
    weights = Weights("package:smollm2-135m")
    tokenizer = weights.tokenizer()
    tokens = torch.tensor(tokenizer.encode(TEXT).ids)
    with torch.inference_mode():
        right = weights.network("float32").eval()(tokens[None]).logits[0].log_softmax(-1)
    lm = CausalLM(lambda: weights.network("bfloat16"), eos_token_id=2, int8=True)
    got = logits(lm.decoder, tokens).log_softmax(-1)
    assert (got.argmax(-1) == right.argmax(-1)).float().mean() > 0.9
    assert (right.exp() * (right - got)).sum(-1).mean() < 0.03
    for question, word in ANSWERS.items():
        assert word in answer(lm, tokenizer, question)
