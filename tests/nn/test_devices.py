"""Devices of workers: which components use them, what is moved, and what a machine without one says."""

import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest
import torch

import mstar.models
from mstar import Bool, Component, Float32, Int64, Tensor, op
from mstar.errors import LoadError
from mstar.models.bagel import bagel, chat
from mstar.models.causal_lm.language_model import LanguageModel as CheckpointLM
from mstar.models.csm import csm
from mstar.models.dia import dia
from mstar.models.diffusion import flux, ltx, sd3, wan
from mstar.models.diffusion.denoiser import Denoiser
from mstar.models.diffusion.shifted_denoiser import ShiftedDenoiser
from mstar.models.diffusion.text_encoders import TextEncoder
from mstar.models.diffusion.vae import Vae
from mstar.models.faces import faces
from mstar.models.hibari.tts import HibariTts
from mstar.models.kokoro import stages as kokoro
from mstar.models.orpheus.language_model import LanguageModel as OrpheusLM
from mstar.models.orpheus.snac import Snac
from mstar.models.parakeet.ctc_network import ParakeetNetwork
from mstar.models.pi05 import pi05
from mstar.models.qwen3_omni import qwen3_omni
from mstar.models.qwen3_tts import qwen3_tts
from mstar.models.rag.language_model import RagLanguageModel
from mstar.models.sentence_transformer.sentence_encoder import SentenceEncoder
from mstar.models.smollm2.smollm2 import LanguageModel as SmolLM2
from mstar.models.smolvlm import smolvlm
from mstar.models.vjepa2 import vjepa2, vjepa2_ac
from mstar.models.voxtral import voxtral
from mstar.models.wav2vec2 import wav2vec2
from mstar.models.whisper.whisper import WhisperAsr, WhisperTinyEn
from mstar.models.whisper.word_times import WordTimes
from mstar.nn.devices import open_device
from mstar.nn.pretend_gpu import PretendTensor, count_traffic, pretend_gpu
from mstar.transfer.values import pack, unpack
from mstar.walk.batching import ragged, stacked
from mstar.walk.states import State
from mstar.walk.values import is_finite

TESTED = {CheckpointLM: "causal_lm", OrpheusLM: "orpheus", SmolLM2: "smollm2", HibariTts: "hibari", Snac: "orpheus"}
TESTED |= {qwen3_tts.Talker: "qwen3_tts", qwen3_tts.Predictor: "qwen3_tts"}
TESTED |= {csm.Backbone: "csm", csm.DepthDecoder: "csm"}
TESTED |= dict.fromkeys([dia.TextEncoder, dia.CodeDecoder, dia.Dac], "dia")
TESTED |= dict.fromkeys([qwen3_omni.AudioEncoder, qwen3_omni.VisionEncoder, qwen3_omni.Thinker], "qwen3_omni")
TESTED |= dict.fromkeys([qwen3_omni.Talker, qwen3_omni.Predictor, qwen3_omni.Vocoder], "qwen3_omni")
TESTED |= dict.fromkeys([WhisperAsr, WhisperTinyEn, WordTimes], "whisper")
TESTED |= {ParakeetNetwork: "parakeet", wav2vec2.Wav2Vec2Network: "wav2vec2"}
TESTED |= dict.fromkeys([kokoro.Prosody, kokoro.Vocoder], "kokoro")
TESTED |= {SentenceEncoder: "sentence_transformer", RagLanguageModel: "rag"}
TESTED |= dict.fromkeys([smolvlm.LanguageModel, smolvlm.VisionEncoder], "smolvlm")
TESTED |= dict.fromkeys([voxtral.LanguageModel, voxtral.AudioEncoder], "voxtral")
TESTED |= dict.fromkeys([bagel.Vae, bagel.Guidance, chat.MixtureLM, chat.VisionEncoder], "bagel")
TESTED |= dict.fromkeys([sd3.T5, sd3.ClipTextEncoder, sd3.ImageDenoiser, sd3.ImageVae], "diffusion")
TESTED |= dict.fromkeys([flux.PooledClip, flux.LongT5, flux.FluxDenoiser], "diffusion")
TESTED |= dict.fromkeys([wan.Umt5, wan.VideoDenoiser, wan.VideoVae], "diffusion")
TESTED |= dict.fromkeys([ltx.MaskedT5, ltx.LtxDenoiser, ltx.LtxVae], "diffusion")
TESTED |= dict.fromkeys([Denoiser, ShiftedDenoiser, TextEncoder, Vae], "diffusion")
TESTED |= dict.fromkeys([faces.StyleMapper, faces.BandSynthesizer, faces.WaveletUpsampler], "faces")
TESTED |= dict.fromkeys([pi05.VisionEncoder, pi05.Policy], "pi05")
TESTED |= dict.fromkeys([vjepa2.ClipEncoder, vjepa2.MaskedPredictor], "vjepa2")
TESTED |= dict.fromkeys([vjepa2_ac.FrameEncoder, vjepa2_ac.Predictor, vjepa2_ac.CrossEntropy], "vjepa2")
"""Components of models that run on a pretend GPU in tests/models/NAME/test_device.py."""


def shown(value):
    return type(value) is PretendTensor


class Scale(Component):
    """Says where its arguments are."""

    runs_on_device = True

    def __init__(self):
        self.seen = []

    def prepare(self):
        self.factor = torch.full((1,), 2.0, device=self.device)

    @op(batch=ragged("T"))
    def scale(
        self, x: Float32[Tensor, "T D"], ids: Int64[Tensor, "T"]
    ) -> tuple[Float32[Tensor, "T D"], Int64[Tensor, "T"]]:
        self.seen.append((shown(x), shown(ids)))
        return x * self.factor, torch.arange(len(ids), device=self.device) + 1

    @op
    def alone(self, x: Float32[Tensor, "D"]) -> tuple[Bool[Tensor, ""], Int64[Tensor, "D E"]]:
        self.seen.append((shown(x),))
        return x.sum() > 0, torch.ones((len(x), 2), dtype=torch.int64, device=self.device)

    @op(batch=stacked)
    def host(self, x: Float32[Tensor, "D"]) -> Float32[Tensor, "D"]:
        self.seen.append((type(x),))
        return x


def scale(device):
    component = Scale()
    component.name, component.device = "scale", device
    component.prepare_once()
    return component


def test_data_is_moved_to_the_device_and_control_values_stay_on_the_host():
    component = scale(pretend_gpu())
    columns = {"x": [torch.ones(2, 3), torch.ones(1, 3)], "ids": [torch.tensor([4, 5]), torch.tensor([6])]}
    with count_traffic() as traffic:
        results = Scale.ops()["scale"].run(component, columns, 2)
    assert component.seen == [(True, False)]
    assert [(shown(x), shown(ids)) for x, ids in results] == [(True, False)] * 2
    assert results[1][0].tolist() == [[2.0, 2.0, 2.0]]
    assert results[1][1].tolist() == [3]
    assert sum(traffic.to_device.values()) == 1
    flag, table = component.alone(torch.ones(3))
    assert component.seen[-1] == (True,)
    assert (shown(flag), shown(table)) == (False, True)


def test_rows_of_two_devices_share_a_batch():
    component = scale(pretend_gpu())
    xs, ids = [torch.ones(2, 3), torch.ones(1, 3).to(pretend_gpu())], [torch.tensor([4, 5]), torch.tensor([6])]
    results = Scale.ops()["scale"].run(component, {"x": xs, "ids": ids}, 2)
    assert component.seen == [(True, False)]
    assert results[0][0].tolist() == [[2.0, 2.0, 2.0]] * 2


def test_a_component_beside_the_device_gets_its_arguments_on_the_host():
    component = scale(torch.device("cpu"))
    result, _ = component.scale(torch.ones(2, 3).to(pretend_gpu()), torch.tensor([4, 5]))
    assert component.seen == [(False, False)]
    assert result.tolist() == [[2.0, 2.0, 2.0]] * 2


def test_a_state_from_another_worker_is_loaded_on_the_device():
    exported = {"layers": [torch.ones(2, 3), None, "Rep"], "memory": {"last": (torch.ones(2),)}, "time": torch.ones(())}
    state = scale(pretend_gpu()).load_state(State, exported)
    values = (*state.layers, *state.memory["last"], state.time)
    assert [shown(value) for value in values] == [True, False, False, True, False]
    assert scale(None).load_state(State, exported).layers is exported["layers"]


def test_a_tensor_of_the_device_leaves_its_process_as_one_of_the_host():
    for dtype in (torch.float32, torch.bfloat16):
        value = torch.arange(6).reshape(2, 3).to(dtype)
        sent = unpack(pack({"x": value.to(pretend_gpu())}))["x"]
        assert type(sent) is torch.Tensor
        assert torch.equal(sent, value)


def test_without_a_device_nothing_is_moved():
    component = scale(None)
    component.scale(torch.ones(2, 3), torch.tensor([4, 5]))
    assert component.seen == [(False, False)]


def test_arrays_of_other_libraries_are_passed_as_they_are():
    component = scale(pretend_gpu())
    assert component.host(np.ones(3, np.float32)).tolist() == [1.0, 1.0, 1.0]
    assert component.seen == [(np.ndarray,)]


def test_rows_of_different_length_are_checked_with_one_wait():
    rows = [torch.ones(length).to(pretend_gpu()) for length in (1, 2, 3)]
    with count_traffic() as traffic:
        assert is_finite(rows)
    assert sum(traffic.syncs.values()) == 1
    assert is_finite([*rows, torch.full((2,), torch.finfo(torch.float32).max).to(pretend_gpu())])
    rows[1][0] = torch.inf
    assert not is_finite(rows)


def components(kind=Component):
    for child in kind.__subclasses__():
        yield child
        yield from components(child)


def test_components_that_run_on_devices_are_tested_on_one():
    for module in pkgutil.walk_packages(mstar.models.__path__, "mstar.models."):
        try:
            importlib.import_module(module.name)
        except ImportError:
            continue  # an extra is missing
    shipped = {kind for kind in components() if kind.__module__.startswith("mstar.models.")}
    assert len(shipped) > 20
    assert {kind for kind in shipped if kind.runs_on_device} == {*TESTED}
    assert all((Path(__file__).parents[1] / "models" / name / "test_device.py").exists() for name in TESTED.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_the_device_says_so():
    with pytest.raises(LoadError, match=r"torch cannot use the device 'cuda:0'.*\n  fix: install the torch build"):
        open_device("cuda:0")
    with pytest.raises(LoadError, match="torch cannot use the device 'tpu'"):
        open_device("tpu")
    assert open_device("cpu") == torch.device("cpu")
    assert open_device("pretend") == pretend_gpu()
