"""The graph cache of encoder-decoders: equal to the network bit for bit, and without transformers."""

import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
import transformers as t

from mstar.errors import LoadError
from mstar.nn import native
from mstar.nn.compile import seq2seq_cache, seq2seq_capture
from mstar.nn.compile.seq2seq_cache import FlatSeq2Seq, load_or_capture_seq2seq
from mstar.nn.lm.eager_seq2seq import EagerSeq2Seq
from mstar.nn.lm.seq2seq import Seq2SeqLM
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV
from tests.nn.lm.test_seq2seq import ENCODER_FRAMES, _new_network, sound

SAMPLING = Sampling(max_tokens=8)


def never():
    raise AssertionError("the network is loaded")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """An empty cache directory."""
    native.is_native(torch.float32, torch.device("cpu"))  # the kernels stay where they are
    monkeypatch.setattr(native, "cache_directory", lambda: tmp_path / "cache")
    seq2seq_cache.read_seq2seq.cache_clear()
    return tmp_path / "cache"


def component(load, **options):
    lm = Seq2SeqLM(load, eos_token_id=2, pages=256, page_size=4, **options)
    lm.name = "lm"
    return lm


def generated(lm, features, steps=8):
    """Greedy tokens, one after the other."""
    kv = lm.make_state(KV)
    decoder = lm.decoder
    (states,) = decoder.encode(features, [features.shape[1]])
    decoder.write_encoder_states(states, [kv], [len(states)])
    token, tokens = torch.tensor([1]), []
    for _ in range(steps):
        token = decoder.next_token(token, [kv], [SAMPLING], Layout(1, (1,)))[0][0]
        tokens.append(int(token))
    return tokens


@pytest.mark.parametrize("window", [None, 4])
def test_a_cached_network_generates_the_same_tokens(window):
    plain = component(_new_network, window=window)
    first = component(_new_network, window=window, weights_checksum=lambda: "x")
    second = component(never, window=window, weights_checksum=lambda: "x")
    for frames in (2 * ENCODER_FRAMES, 2 * (ENCODER_FRAMES - 3)):
        features = sound(frames)[:, :frames]
        assert generated(plain, features) == generated(first, features) == generated(second, features)


def test_an_encoder_has_equal_bits_and_projections_differ_in_the_last_ones():
    load_or_capture_seq2seq("x", _new_network, None)
    flat, eager = load_or_capture_seq2seq("x", never, None), EagerSeq2Seq(_new_network(), None)
    assert isinstance(flat, FlatSeq2Seq)
    with torch.inference_mode():
        for positions in (1, 4, ENCODER_FRAMES):
            features = sound(positions)[None, :, : 2 * positions]
            states = eager.encode(features)
            assert torch.equal(flat.encode(features), states)
            pairs = zip(flat.cross_keys_values(states), eager.cross_keys_values(states), strict=True)
            for ours, theirs in pairs:  # the kernel of a product sums in another order than torch
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_other_weights_and_windows_have_entries_of_their_own(directory):
    for checksum, window in (("x", None), ("y", None), ("x", 4)):
        load_or_capture_seq2seq(checksum, _new_network, window)
    assert len([*directory.glob("*.graph")]) == 3


def test_a_damaged_entry_is_replaced(directory, caplog):
    load_or_capture_seq2seq("x", _new_network, None)
    (entry,) = directory.iterdir()
    data = bytearray(entry.read_bytes())
    data[3] ^= 0x40  # the highest byte of the exponent of a weight
    entry.unlink()
    entry.write_bytes(data)
    assert isinstance(load_or_capture_seq2seq("x", _new_network, None), FlatSeq2Seq)
    assert "is not used and is removed" in caplog.text


def test_without_a_writable_directory_the_network_is_used(directory, caplog):
    directory.write_text("a file, so that no directory can be made here")
    assert isinstance(load_or_capture_seq2seq("x", _new_network, None), t.WhisperForConditionalGeneration)
    assert "is not cached" in caplog.text


def test_without_a_home_directory_the_network_is_used(monkeypatch, caplog):
    monkeypatch.setattr(native, "cache_directory", Mock(side_effect=RuntimeError("no home directory")))
    seq2seq_cache.preload_seq2seq("x", None)
    assert isinstance(load_or_capture_seq2seq("x", _new_network, None), t.WhisperForConditionalGeneration)
    assert "there is no graph cache" in caplog.text


def test_a_graph_that_differs_from_its_network_is_refused(monkeypatch):
    other, capture = _new_network(), seq2seq_capture.capture_seq2seq
    other.model.decoder.layers[0].fc2.weight.data.mul_(2)
    monkeypatch.setattr(seq2seq_capture, "capture_seq2seq", lambda _: capture(EagerSeq2Seq(other, None)))
    with pytest.raises(LoadError, match=r"the captured graph differs[\s\S]*fix: install another version of torch"):
        load_or_capture_seq2seq("x", _new_network, None)


def test_a_decoder_that_mixes_its_tokens_is_refused():
    class Mixed(torch.nn.LayerNorm):
        def forward(self, x):
            return super().forward(x + x.mean(dim=1, keepdim=True))

    def mixing():
        network = _new_network()
        network.model.decoder.layer_norm = Mixed(32)
        return network

    with pytest.raises(LoadError, match="WhisperForConditionalGeneration cannot be served: 12 tokens at once differ"):
        load_or_capture_seq2seq("x", mixing, None)


def test_a_cached_encoder_decoder_needs_no_transformers():
    heavy = ("transformers", "torch._dynamo", "scipy", "sympy")
    imports = "import sys, mstar.nn.lm.encoder_decoder, mstar.models.whisper.whisper"
    code = f"{imports}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
