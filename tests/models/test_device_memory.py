"""Families with KV caches on a device that reports its memory: their pages fill the share of the worker."""

import pytest
import torch

from mstar.models.bagel.bagel import Bagel
from mstar.models.csm.csm import Csm
from mstar.models.dia.dia import Dia
from mstar.models.orpheus.orpheus import Orpheus
from mstar.models.pi05.pi05 import Pi05
from mstar.models.qwen3_omni.qwen3_omni import Qwen3Omni
from mstar.models.qwen3_tts.qwen3_tts import Qwen3Tts
from mstar.models.smolvlm.smolvlm import SmolVlm
from mstar.models.voxtral.voxtral import Voxtral
from mstar.models.whisper.whisper import Whisper
from mstar.nn.device_memory import open_memory
from mstar.nn.pretend_gpu import pretend_gpu, with_memory
from tests.models.bagel import bagel_tiny
from tests.models.csm import csm_tiny
from tests.models.dia import dia_tiny
from tests.models.on_device import place
from tests.models.orpheus import orpheus_tiny
from tests.models.pi05 import pi05_tiny
from tests.models.qwen3_omni import qwen3_omni_tiny
from tests.models.qwen3_tts import qwen3_tts_tiny
from tests.models.smolvlm import smolvlm_tiny
from tests.models.voxtral import voxtral_tiny
from tests.models.whisper import whisper_tiny
from tests.tiers import ci_cases

FAMILIES = {
    "bagel": lambda folder: Bagel(bagel_tiny.save(folder)),
    "csm": lambda folder: Csm(csm_tiny.save(folder)),
    "dia": lambda folder: Dia(dia_tiny.save(folder)),
    "orpheus": lambda folder: Orpheus(*orpheus_tiny.save(folder)),
    "pi05": lambda folder: Pi05(pi05_tiny.save(folder)),
    "qwen3_omni": lambda folder: Qwen3Omni(qwen3_omni_tiny.save(folder)),
    "qwen3_tts": lambda folder: Qwen3Tts(qwen3_tts_tiny.save(folder)),
    "smolvlm": lambda folder: SmolVlm(smolvlm_tiny.save(folder)),
    "voxtral": lambda folder: Voxtral(voxtral_tiny.save(folder)),
    "whisper": lambda folder: Whisper(whisper_tiny.save(folder)),
}
SIZE = 256_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ci_cases(FAMILIES, "bagel", "orpheus"))
def test_a_family_is_loaded_within_its_share(name, tmp_path):
    with with_memory(SIZE), torch.inference_mode():
        model = place(FAMILIES[name](tmp_path))
        memory = open_memory(pretend_gpu(), None, max_batched_tokens=32, max_batch_size=4)
        for component in model.components().values():
            component.memory = memory if component.device.type != "cpu" else None
            component.prepare_once()
        before = memory.used
        memory.allocate()
        assert before <= memory.used <= memory.limit < SIZE
