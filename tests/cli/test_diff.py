"""`mstar diff` finds planted bugs: the op and the number of its call, within seconds."""

import json
import time
from contextlib import nullcontext

import pytest

from mstar.cli import main
from mstar.cli.diff.command import describe, runner
from mstar.cli.diff.difference import find_difference
from mstar.requests import ChatRequest, Message, Sampling, TranscriptionRequest

MODEL = """
import numpy as np
from mstar import Component, Float32, Model, State, Tensor, op, walk

SCALE, SHIFT, HAS_ERROR = {scale}, {shift}, {has_error}


class Total(State):
    def __init__(self):
        self.value = 0.0


class Filter(Component):
    @op
    def scale(self, samples: Float32[Tensor, "S"]) -> Float32[Tensor, "S"]:
        return samples * np.float32(SCALE)

    @op
    def add(self, samples: Float32[Tensor, "S"], total: Total) -> int:
        total.value += float(samples.sum()) + SHIFT
        return 1

    @op
    def mean(self, samples: Float32[Tensor, "S"]) -> float:
        if HAS_ERROR:
            raise ValueError("no mean")
        return float(samples.mean())


class Filters(Model):
    def __init__(self):
        self.filter = Filter()

    @walk
    def run(self, samples: Float32[Tensor, "S"]) -> tuple[float, int]:
        total = self.filter.state(Total)
        first = self.filter.scale(samples)
        second = self.filter.scale(first)
        count = self.filter.add(second, total)
        return self.filter.mean(second), count

    async def route(self, request: list[float]) -> tuple[float, int]:
        return await self.run(np.array(request, np.float32))

    def warmup_requests(self):
        return [[1.0, 2.0]]
"""


def version(folder, name, scale=1.0, shift=0.0, has_error=False):
    path = folder / f"{name}.py"
    path.write_text(MODEL.format(scale=scale, shift=shift, has_error=has_error))
    return str(path)


def test_the_first_call_with_another_output_is_named(tmp_path, capsys):
    first = version(tmp_path, "a")
    assert main(["diff", first, version(tmp_path, "b")]) == 0
    assert "no difference in 4 op calls" in capsys.readouterr().out
    with pytest.raises(SystemExit) as status:
        main(["diff", first, version(tmp_path, "c", scale=1.5)])
    assert status.value.code == 1
    out = capsys.readouterr().out
    assert out.startswith("first difference: filter.scale, call 0: output 0 float32[2], max abs difference 1\n")
    assert "its arguments are equal (`samples`); the fault is in this op" in out


def test_a_state_an_error_and_a_tolerance(tmp_path, capsys):
    first = version(tmp_path, "a")
    for name, changes, call, what in (
        ("state", {"shift": 0.5}, ["filter.add", 0], "state total"),
        ("error", {"has_error": True}, ["filter.mean", 0], "error"),
    ):
        with pytest.raises(SystemExit):
            main(["diff", first, version(tmp_path, name, **changes), "--json"])
        difference = json.loads(capsys.readouterr().out)["difference"]
        assert (difference["call"], difference["what"], difference["is_here"]) == (call, what, True)
    slightly = version(tmp_path, "slightly", scale=1.00001)
    assert main(["diff", first, slightly, "--tolerance", "0.01"]) == 0
    with pytest.raises(SystemExit):
        main(["diff", first, slightly, "--tolerance", "0.00001"])
    assert main(["diff", first, str(tmp_path / "missing.py")]) == 1


# ---------------------------------------------------------------- planted bugs
CHAT = ChatRequest((Message("user", ("Which one is it?",)),), Sampling(max_tokens=6, logprobs=3))
LIMIT_S = 60.0


def load(folder, change=None):
    """The model of a folder, with a change of its network."""
    from mstar.models.causal_lm.causal_lm import CausalLanguageModel
    from mstar.nn.lm.network_loader import NetworkLoader

    model = CausalLanguageModel(str(folder))
    if change is not None:

        def network():
            loaded = model.lm.checkpoint.network()
            change(loaded)
            return loaded

        model.lm._loader = NetworkLoader(network, None, is_int8=False)
    return model


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Folder and loaded model of each family."""
    from tests.models.causal_lm.causal_lm_tiny import save

    loaded = {}

    def original(family):
        if family not in loaded:
            folder = save(tmp_path_factory.mktemp(family), family)
            loaded[family] = folder, load(folder)
        return loaded[family]

    return original


def find(first, second, request, patch):
    """The difference, and the CPU seconds that it took, the loading of the second version included."""
    run = runner(second, request)

    def run_patched(recorder):
        with patch():
            run(recorder)

    started_at = time.process_time()
    difference, _ = find_difference(runner(first, request), run_patched)
    return difference, time.process_time() - started_at


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names",
    [("wrong rope base", "off-by-one position", "stale cache"), pytest.param((), marks=pytest.mark.nightly)],
    ids=["some", "all"],
)
def test_planted_bugs_of_decoders_are_located(originals, names):
    from tests.cli.planted_bugs import BUGS

    located, reports = [], []
    bugs = [bug for bug in BUGS if bug.name in names or not names]
    for bug in bugs:
        folder, first = originals(bug.family)
        difference, seconds = find(first, load(folder, bug.change), CHAT, bug.patch)
        is_located = difference is not None and difference.call == (bug.op, bug.call) and difference.is_here
        reports.append(f"{bug.name}: {'not found' if difference is None else describe(difference)} ({seconds:.1f} s)")
        assert seconds < LIMIT_S, reports[-1]
        if is_located:
            located.append(bug.name)
    missed = [bug.name for bug in bugs if bug.name not in located]
    assert not missed, "\n".join(reports)


# ---------------------------------------------------------------- an audio model
def transposed_cross_attention(network):
    projection = network.model.decoder.layers[0].encoder_attn.k_proj
    projection.weight.data = projection.weight.data.T.contiguous()


def missing_convolution_bias(network):
    network.model.encoder.conv2.bias.data += 0.01


def shifted_positions(network):
    weight = network.model.encoder.embed_positions.weight
    weight.data = weight.data.roll(1, 0)


def wrong_final_norm(network):
    network.model.decoder.layer_norm.eps = 1e-3


AUDIO_BUGS = [
    ("asr.encode", 0, missing_convolution_bias),
    ("asr.encode", 0, shifted_positions),
    ("asr.write_encoder_states", 0, transposed_cross_attention),
    ("asr.language_token", 0, wrong_final_norm),
]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_planted_bugs_of_an_audio_model_are_located(tmp_path):
    from mstar.models.whisper.whisper import Whisper
    from mstar.nn.lm.network_loader import Seq2SeqLoader
    from tests.models.whisper.whisper_tiny import save, sound

    folder = save(tmp_path / "tiny", is_wordy=True)
    request = TranscriptionRequest(sound(0, 2))

    def load_whisper(change=None):
        model = Whisper(str(folder), pages=512)
        if change is not None:
            original = model.asr._loader.load_uncached

            def network():
                loaded = original()
                change(loaded)
                return loaded

            model.asr._loader = Seq2SeqLoader(network, None, None)
        return model

    first = load_whisper()
    for op, call, change in AUDIO_BUGS:
        difference, seconds = find(first, load_whisper(change), request, nullcontext)
        assert difference is not None, change.__name__
        assert (difference.call, difference.is_here) == ((op, call), True), describe(difference)
        assert seconds < LIMIT_S
