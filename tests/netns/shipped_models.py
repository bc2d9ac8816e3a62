"""Every shipped model as a target of `mstar serve`: with the weights of an installed package, else with random ones."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from mstar.models.faces.network import build_network
from tests.models.bagel import bagel_tiny
from tests.models.causal_lm import causal_lm_tiny
from tests.models.csm import csm_tiny
from tests.models.dia import dia_tiny
from tests.models.diffusion import diffusion_tiny
from tests.models.kokoro import kokoro_tiny
from tests.models.orpheus import orpheus_tiny
from tests.models.parakeet import parakeet_tiny
from tests.models.pi05 import pi05_tiny
from tests.models.qwen3_omni import qwen3_omni_tiny
from tests.models.qwen3_tts import qwen3_tts_tiny
from tests.models.rag.corpus import build_small_index
from tests.models.smolvlm import smolvlm_tiny
from tests.models.vits import vits_tiny
from tests.models.vjepa2 import vjepa2_tiny
from tests.models.voxtral import voxtral_tiny
from tests.models.wav2vec2 import wav2vec2_tiny

PACKAGED = ("assistant", "hibari", "hopper", "sentence-transformer", "smollm2", "terrain", "turn-detector", "whisper")
"""Models whose weights are in an installed package."""
_FACES = {"style": 8, "depth": 2, "channels": [16, 16, 8]}
_ORPHEUS = """
from mstar.models.orpheus.orpheus import Orpheus

class Served(Orpheus):
    def __init__(self) -> None:
        super().__init__({!r}, {!r})
"""


def save_models(root: Path) -> dict[str, str]:
    """Save random weights below `root`. Returns the targets by name."""

    def folder(name):
        path = root / name
        path.mkdir(parents=True)
        return path

    orpheus = folder("orpheus") / "orpheus_served.py"
    orpheus.write_text(_ORPHEUS.format(*orpheus_tiny.save(orpheus.parent)))
    diffusion_tiny.save_sd3(folder("sd3"))
    diffusion_tiny.save_flux(folder("flux"))
    diffusion_tiny.save_wan(folder("wan"))
    diffusion_tiny.save_ltx(folder("ltx"))
    bagel, omni = bagel_tiny.save(folder("bagel")), qwen3_omni_tiny.save(folder("qwen3_omni"))
    index = build_small_index(folder("rag"))[1]
    smolvlm, clips = smolvlm_tiny.save(folder("smolvlm")), vjepa2_tiny.save_clips(folder("vjepa2"))[0]
    return {
        **{name: name for name in PACKAGED},
        "bagel": f"bagel@{bagel}",
        "bagel-chat": f"bagel-chat@{bagel}",
        "causal-lm": f"causal-lm@{causal_lm_tiny.save(folder('causal_lm'), 'llama')}",
        "csm": f"csm@{csm_tiny.save(folder('csm'))}",
        "dia": f"dia@{dia_tiny.save(folder('dia'))}",
        "faces": f"faces@{_save_faces(folder('faces'))}",
        "flux": f"flux@{root / 'flux'}",
        "kokoro": f"kokoro@{kokoro_tiny.save(folder('kokoro'))}",
        "ltx": f"ltx@{root / 'ltx'}",
        "orpheus": f"{orpheus}:Served",
        "parakeet": f"parakeet@{parakeet_tiny.save(folder('parakeet'))}",
        "pi05": f"pi05@{pi05_tiny.save(folder('pi05'))}",
        "qwen3-omni": f"qwen3-omni@{omni}",
        "qwen3-omni-text": f"qwen3-omni-text@{omni}",
        "qwen3-tts": f"qwen3-tts@{qwen3_tts_tiny.save(folder('qwen3_tts'))}",
        "rag": f"rag@{index}",
        "rag-in-steps": f"rag-in-steps@{index}",
        "sd3": f"sd3@{root / 'sd3'}",
        "smolvlm": f"smolvlm@{smolvlm}",
        "smolvlm-text": f"smolvlm-text@{smolvlm}",
        "vits": f"vits@{vits_tiny.save(folder('vits'))}",
        "vjepa2": f"vjepa2@{clips}",
        "vjepa2-ac": f"vjepa2-ac@{vjepa2_tiny.save_ac(folder('vjepa2_ac'))}",
        "vjepa2-encoder": f"vjepa2-encoder@{clips}",
        "voxtral": f"voxtral@{voxtral_tiny.save(folder('voxtral'))}",
        "wan": f"wan@{root / 'wan'}",
        "wav2vec2": f"wav2vec2@{wav2vec2_tiny.save(folder('wav2vec2'))}",
    }


def _save_faces(folder):
    torch.manual_seed(3)
    tensors = {
        f"{part}.{name}": tensor
        for part in ("mapping", "synthesis")
        for name, tensor in build_network(part, _FACES).state_dict().items()
    }
    (folder / "config.json").write_text(json.dumps(_FACES))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder
