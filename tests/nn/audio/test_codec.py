"""Sound that is decoded piece by piece is the sound of the whole, for every decoder that is not refused."""

import random
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
import transformers as t
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from mstar import Audio, Component, Float, Int32, Int64, Model, Stream, Tensor, loop, op, walk, windows
from mstar.errors import LoadError, MstarError
from mstar.nn.audio.codec import Codec, CodecStreamState
from mstar.testing.parity import parity_all

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it scripts a function as it is imported
    from snac import SNAC

MIMI = {"hidden_size": 32, "num_filters": 4, "upsampling_ratios": [2, 2], "codebook_size": 16, "codebook_dim": 8}
MIMI |= {"num_quantizers": 4, "vector_quantization_hidden_dimension": 8, "upsample_groups": 32, "num_hidden_layers": 2}
MIMI |= {"intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 6}
ENCODEC = {"num_filters": 4, "upsampling_ratios": [4, 2], "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16}
QWEN = {"codebook_size": 16, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "sliding_window": 6}
QWEN |= {"intermediate_size": 64, "num_hidden_layers": 2, "num_quantizers": 4, "upsample_rates": (3, 2)}
QWEN |= {"upsampling_ratios": (2, 2), "decoder_dim": 32}
SNAC_SIZES = {"encoder_dim": 2, "decoder_dim": 16, "codebook_size": 16, "attn_window_size": None, "noise": False}
SNAC_SIZES |= {"encoder_rates": [2, 4, 8, 8], "decoder_rates": [8, 8, 4, 2], "vq_strides": [4, 2, 1]}
FRAMES = 30


def seeded(make, gain=1):
    """A decoder in which every layer matters; libraries make some weights and all codebooks zero."""
    torch.manual_seed(0)
    made = make().eval()
    for name, value in made.state_dict().items():
        if name.endswith(("embed", "embed_sum", "gamma", "scale")):
            value.normal_()
        elif value.ndim > 1:
            value.mul_(gain)
    return made


def mimi():
    return seeded(lambda: t.MimiModel(t.MimiConfig(**MIMI, encoder_config=None)))


def mimi_sound(network, codes):
    return network.decode(codes.transpose(1, 2)).audio_values[:, 0]


def encodec(**how):
    config = t.EncodecConfig(**ENCODEC, sampling_rate=64, target_bandwidths=[0.1], **how)
    return seeded(lambda: t.EncodecModel(config))


def encodec_sound(network, codes):
    return network.decode(codes.transpose(1, 2)[None], [None]).audio_values[:, 0]


def qwen():
    return seeded(lambda: Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**QWEN)), gain=3)


def qwen_sound(network, codes):
    return network(codes.transpose(1, 2))[:, 0]


def snac():
    return seeded(lambda: SNAC(**SNAC_SIZES))


def snac_sound(network, codes):
    """A frame is one code of the first level, two of the second and four of the third, as Orpheus writes them."""
    levels = ([0], [1, 4], [2, 3, 5, 6])
    return network.decode([codes[:, :, level].flatten(1) for level in levels])[:, 0]


CAUSAL = {
    # the decoder, what it does, codebooks, samples a frame, the smallest beginning
    "mimi": (mimi, mimi_sound, 4, 8, 1),
    "encodec": (encodec, encodec_sound, 3, 8, 7),
    "qwen3-omni": (qwen, qwen_sound, 4, 24, 1),
}


def component(make, sound, **how):
    codec = Codec(make, sound, **how)
    codec.name = "codec"
    return codec


def causal(name):
    make, sound, _, hop, _ = CAUSAL[name]
    return component(make, sound, hop=hop)


def streams(codebooks, count=4):
    torch.manual_seed(1)
    return torch.randint(0, 16, (count, FRAMES, codebooks))


def whole(make, sound, codes):
    with torch.inference_mode():
        return sound(make(), codes)


def decode(codec, codes, pasts):
    results = codec.ops()["decode"].run(codec, {"codes": codes, "state": pasts}, len(codes))
    return [sound for (sound,) in results]


def assert_same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", CAUSAL)
def test_streams_in_pieces_of_any_size_give_what_each_gives_at_once(name):
    make, sound, codebooks, _, first = CAUSAL[name]
    codec, codes, chosen = causal(name), streams(codebooks), random.Random(5)
    pasts, audio, at, is_mixed = [CodecStreamState() for _ in codes], [[] for _ in codes], [0] * len(codes), False
    while waiting := [row for row in range(len(codes)) if at[row] < FRAMES]:
        size = chosen.randint(1, first + 3)
        fit = [row for row in waiting if at[row] + size <= FRAMES and (at[row] or size >= first)]
        batch = [row for row in fit if chosen.random() < 0.6]
        pieces = [codes[row, at[row] : at[row] + size] for row in batch]
        is_mixed |= len({at[row] > 0 for row in batch}) == 2
        for row, sounds in zip(
            batch, decode(codec, pieces, [pasts[row] for row in batch]) if batch else (), strict=True
        ):
            audio[row].append(sounds)
            at[row] += size
    for row, wanted in enumerate(whole(make, sound, codes)):
        assert_same(torch.cat(audio[row]), wanted)
    assert is_mixed, "streams that begin shared a batch with others"


def test_a_stream_is_remembered_in_the_same_memory_however_long_it_is():
    codec, past, sizes = causal("mimi"), CodecStreamState(), set()
    for frame in streams(4)[0]:
        codec.decode(frame[None], past)
        sizes.add(sum(kept.nbytes for kept in past.memory.values()))
    assert len(sizes) == 1


@pytest.mark.parametrize("name", CAUSAL)
def test_a_fork_goes_its_own_way(name):
    make, sound, codebooks, *_ = CAUSAL[name]
    codec, (one, other, *_) = causal(name), streams(codebooks)
    swerved = torch.cat([one[:12], other[12:]])
    wanted = whole(make, sound, torch.stack([one, swerved]))
    past = CodecStreamState()
    begun = codec.decode(one[:12], past)
    fork = past.fork()
    ends = [codec.decode(other[12:], fork), codec.decode(one[12:], past)]
    for end, want in zip(ends, reversed(wanted), strict=True):
        assert_same(torch.cat([begun, end]), want)


def test_a_beginning_too_short_to_be_reflected_is_refused_and_changes_nothing():
    codec, codes, past = causal("encodec"), streams(3)[0], CodecStreamState()
    with pytest.raises(MstarError, match=r"layers.0 with reflect padding: 6 frames, minimum 7[\s\S]*fix: .*first=7"):
        codec.decode(codes[:6], past)
    assert not past.memory
    zeros = component(lambda: encodec(pad_mode="constant"), encodec_sound, hop=8)
    wanted = whole(lambda: encodec(pad_mode="constant"), encodec_sound, codes[None, :9])[0]
    assert_same(torch.cat([zeros.decode(codes[at : at + 3], past) for at in (0, 3, 6)]), wanted)


REFUSED = {
    "it looks ahead": (snac, snac_sound, 7),
    "its layers look ahead": (lambda: encodec(use_causal_conv=False), encodec_sound, 3),
    "it looks at the whole": (lambda: encodec(norm_type="time_group_norm"), encodec_sound, 3),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_decoder_whose_pieces_differ_is_refused(why):
    make, sound, codebooks = REFUSED[why]
    codec = component(make, sound, hop=8)
    for _ in range(2):
        with pytest.raises(
            LoadError, match=r"streaming changes the audio of .*: relative difference \de-\d\d[\s\S]*fix: decode it in"
        ):
            codec.decode(streams(codebooks)[0], CodecStreamState())


def test_attention_that_would_be_remembered_for_ever_is_refused():
    def boundless():
        made = mimi()
        for layer in made.decoder.decoder_transformer.layers:
            layer.self_attn.sliding_window = None
        return made

    with pytest.raises(LoadError, match=r"MimiAttention has no sliding window[\s\S]*fix: decode it in windows"):
        component(boundless, mimi_sound, hop=8).decode(streams(4)[0], CodecStreamState())


HOP = 2048


def changed(first, second):
    """The frames of sound in which two recordings differ."""
    return sorted({int(at) // HOP for at in (first != second).nonzero()})


def test_snac_looks_three_frames_ahead_and_three_back():
    codes = streams(7)[:1, :15]
    other = codes.clone()
    other[0, 7] = (other[0, 7] + 5) % 16
    assert changed(*(whole(snac, snac_sound, each)[0] for each in (codes, other))) == [4, 5, 6, 7, 8, 9, 10]


def decode_in_windows(codec, codes, context, sizes):
    at, pieces = 0, []
    for size in sizes:
        start, at = max(0, at - context), at + size
        pieces.append(codec.decode_window(codes[start:at], size))
    return torch.cat(pieces)


@pytest.mark.parametrize(("ahead", "least", "most"), [(3, 0, 1e-5), (2, 1e-4, 1e-2), (1, 1e-2, 1)])
def test_snac_in_windows_gives_the_whole_as_far_as_it_sees(ahead, least, most):
    chosen, codes = random.Random(0), streams(7)[0, :15]
    sizes = [2]
    while sum(sizes) < len(codes):
        sizes.append(min(chosen.randint(1, 3), len(codes) - sum(sizes)))
    codec = component(snac, snac_sound, hop=HOP, lookahead=ahead)
    wanted = whole(snac, snac_sound, codes[None])[0, : -ahead * HOP]
    differs = float((decode_in_windows(codec, codes, 2 * ahead, sizes) - wanted).abs().max() / wanted.abs().max())
    assert least <= differs <= most


@pytest.mark.parametrize(("name", "context"), [("mimi", 12), ("qwen3-omni", 28)])
def test_a_causal_decoder_in_windows_gives_the_whole_if_they_hold_what_it_looks_back_at(name, context):
    make, sound, codebooks, *_ = CAUSAL[name]
    codes = streams(codebooks)[:2].flatten(0, 1)
    assert_same(decode_in_windows(causal(name), codes, context, [6] * 10), whole(make, sound, codes[None])[0])


class Writer(Component):
    """Writes frames of codes that depend on all before."""

    @op
    def next(self, frame: Int64[Tensor, "Q"]) -> Int64[Tensor, "Q"]:
        return (frame * 5 + frame.roll(1) + 3) % 16


class Speaker(Codec):
    @op
    def samples(self, sound: Float[Tensor, "S"]) -> Int32[Tensor, "S"]:
        """Sound in whole numbers: batching may change the last bits of others."""
        return (sound * 10_000).round().int()


class Streaming(Model):
    """Speaks with a decoder that remembers."""

    def __init__(self):
        self.writer = Writer()
        self.codec = Speaker(lambda: mimi().double(), mimi_sound, hop=8)

    @walk
    def speak(self, frame: Int64[Tensor, "4"], frames: int) -> Iterator[Audio]:
        codes = Stream("codes")
        s = loop(steps=frames, frame=frame)
        for _ in s:
            codes.put(s.frame)
            s.frame = self.writer.next(s.frame)
        past = self.codec.state(CodecStreamState)
        for window in windows(codes, size=3, first=1, flush=True):
            yield Audio(self.codec.samples(self.codec.decode(window, past)), rate=24_000)


class Windowed(Model):
    """Speaks with a decoder that looks ahead."""

    def __init__(self):
        self.writer = Writer()
        self.codec = Speaker(lambda: snac().double(), snac_sound, hop=HOP, lookahead=3)

    @walk
    def speak(self, frame: Int64[Tensor, "7"], frames: int) -> Iterator[Audio]:
        codes = Stream("codes")
        s = loop(steps=frames, frame=frame)
        for _ in s:
            codes.put(s.frame)
            s.frame = self.writer.next(s.frame)
        for _ in range(3):  # what the last frames look ahead to
            codes.put(s.frame)
        w = windows(codes, size=2, context=6, first=4, flush=True)
        for window in w:
            yield Audio(self.codec.samples(self.codec.decode_window(window, w.fresh)), rate=24_000)


@pytest.mark.parametrize(("model", "codebooks"), [(Streaming, 4), (Windowed, 7)])
def test_a_walk_is_served_as_it_runs(model, codebooks):
    counts = (7, 2, 5, 1)
    requests = [{"frame": codes[0], "frames": n} for codes, n in zip(streams(codebooks), counts, strict=False)]
    parity_all(model(), requests, schedules=3)


def test_importing_it_loads_no_tensor_library():
    code = "import sys, mstar.nn.audio.codec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
