"""Published models at full size on fake CUDA: parameters, bytes and devices, without a GPU and without weights."""

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as t
from torch import nn
from torch.nn import Module

from mstar.nn.compile.graph_capture import capture
from mstar.nn.kv.paged_attention import PAGED_ATTENTION, attend_running
from mstar.nn.lm.mrope import MRopeModel
from mstar.nn.network_size import DTYPE_BYTES, KVSize, kv_size
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.nn.published_sizes import PUBLISHED, find_published
from tests.nn.fake_cuda import DEVICE, fake_cuda
from tests.tiers import ci_cases


def build_causal_lm(config):
    return {"lm": [getattr(t, config["architectures"][0])(config_of(config))]}


def config_of(config):
    kind = getattr(t, config["architectures"][0]).config_class
    return kind(**config, dtype="bfloat16")


def build_omni(config):
    whole: Any = t.Qwen3OmniMoeForConditionalGeneration(t.Qwen3OmniMoeConfig(**config))
    thinker, talker = whole.thinker, whole.talker
    talker_parts = [talker.model, talker.codec_head, talker.text_projection, talker.hidden_projection]
    return {
        "thinker": [thinker.model.language_model, thinker.lm_head],
        "audio_encoder": [thinker.model.audio_tower],
        "vision_encoder": [thinker.model.visual],
        "talker": talker_parts,
        "predictor": [talker.code_predictor],
        "vocoder": [whole.code2wav],
    }


def build_bagel(config):
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
    from transformers.models.siglip.modeling_siglip import SiglipMLP

    from mstar.models.bagel.mixture import Mixture

    llm, sizes = t.Qwen2Config(**config["llm_config.json"]), config["sizes"]
    mixture = Mixture(llm, sizes["latent_block"] ** 2 * sizes["latent_channels"], sizes["latent_side"] ** 2)
    vit = config["vit_config.json"]
    vit = t.SiglipVisionConfig(**vit | {"num_hidden_layers": vit["num_hidden_layers"] - 1, "vision_use_head": False})
    connector = SiglipMLP(vit)
    connector.fc1, connector.fc2 = (
        nn.Linear(vit.hidden_size, llm.hidden_size),
        nn.Linear(llm.hidden_size, llm.hidden_size),
    )
    places = nn.Embedding(sizes["vit_side"] ** 2, llm.hidden_size)
    vision, blocks = t.SiglipVisionModel(vit), len(config["vae"]["block_out_channels"])
    torch.set_default_dtype(torch.float32)  # `fake_cuda` restores it
    vae = AutoencoderKL(
        **config["vae"],
        down_block_types=["DownEncoderBlock2D"] * blocks,
        up_block_types=["UpDecoderBlock2D"] * blocks,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    return {"lm": [mixture], "vision_encoder": [vision, connector, places], "vae": [vae]}


def build_pi05(config):
    from tests.models.pi05.pi05_published import conditioned_gemma

    vision = t.SiglipVisionModel(t.SiglipVisionConfig(**config["vision_config"], vision_use_head=False))
    gemma: Any = t.GemmaModel(t.GemmaConfig(**config["text_config"], use_bidirectional_attention=True))
    projector = nn.Linear(config["vision_config"]["hidden_size"], config["text_config"]["hidden_size"])
    expert = conditioned_gemma(gemma.config, config["action_expert"]["width"], config["action_expert"]["mlp_dim"])
    return {"vision_encoder": [vision, projector], "policy": [gemma, expert]}


def build_vjepa2_ac(config):
    from mstar.models.vjepa2.checkpoint import Sizes
    from mstar.models.vjepa2.network import Encoder, Predictor

    sizes = Sizes.from_config(config)
    return {"encoder": [Encoder(sizes)], "predictor": [Predictor(sizes)]}


BUILDERS = {
    "llama-3.1-8b": build_causal_lm,
    "qwen3-30b-a3b": build_causal_lm,
    "qwen3-omni-30b-a3b": build_omni,
    "bagel-7b-mot": build_bagel,
    "pi0.5": build_pi05,
    "vjepa2-ac-vitg": build_vjepa2_ac,
}


@functools.cache
def built(name) -> dict[str, list[Module]]:
    model = PUBLISHED[name]
    dtype = next(iter(model.components.values())).dtype
    with fake_cuda(getattr(torch, dtype)):
        return BUILDERS[name](dict(model.config))


def tensors_of(modules):
    holder = nn.ModuleList(modules)
    return [*holder.parameters()], [*holder.buffers()]


def test_every_published_model_is_built():
    assert {*BUILDERS} == {*PUBLISHED}


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_tensor_is_on_the_device_and_the_sizes_are_right(name):
    model, parts = PUBLISHED[name], built(name)
    counts = {}
    for component, modules in parts.items():
        parameters, buffers = tensors_of(modules)
        assert {tensor.device for tensor in (*parameters, *buffers)} == {DEVICE}, component
        counts[component] = sum(parameter.numel() for parameter in parameters)
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        assert size == counts[component] * DTYPE_BYTES[model.components[component].dtype], component
    assert counts == {component: size.parameters for component, size in model.components.items()}
    if isinstance(model.published, int):
        assert model.parameters + model.unused == model.published
        return
    for component, rounded in model.published.items():  # no exact count is published
        assert round(counts[component] / 1e9, len(rounded.partition(".")[2])) == float(rounded), component


def decoder_of(name, component) -> Any:
    """The network that `Decoder` runs for a component."""
    parts = built(name)[component]
    if name != "qwen3-omni-30b-a3b":
        return parts[0]
    is_thinker = component == "thinker"
    options = (
        {"levels": 3, "layer": PUBLISHED[name].config["talker_config"]["accept_hidden_layer"]} if is_thinker else {}
    )
    with fake_cuda():
        return MRopeModel(parts[0], parts[1], **options)


DECODERS = [
    ("llama-3.1-8b", "lm"),
    ("qwen3-30b-a3b", "lm"),
    ("qwen3-omni-30b-a3b", "thinker"),
    ("qwen3-omni-30b-a3b", "talker"),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "component"), ci_cases(DECODERS, ("llama-3.1-8b", "lm")))
def test_a_decoder_is_captured_with_every_tensor_on_the_device(monkeypatch, name, component):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    network = decoder_of(name, component).eval().requires_grad_(requires_grad=False)
    network.config._attn_implementation = PAGED_ATTENTION
    with fake_cuda():
        flat, tensor = capture(network)
    values = [node.meta.get("val") for node in flat.graph.nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    assert {value.device for value in tensors} == {DEVICE}
    weights = [tensor(recipe[1]) for recipe in flat.constants]
    assert {weight.device for weight in weights} == {DEVICE}
    size = PUBLISHED[name].components[component]
    assert replace(kv_size(network.config), dtype=size.dtype) == size.kv
    attends = [node for node in flat.graph.nodes if node.target is attend_running]
    assert len(attends) == size.kv.layers
    keys = attends[0].args[1].meta["val"]
    assert KVSize(len(attends), keys.shape[1], keys.shape[3], keys.shape[3], "bfloat16") == size.kv
    embeddings = network.get_input_embeddings().weight
    ours = {id(weight): weight.numel() for weight in weights if weight.dtype is torch.bfloat16}
    assert sum(ours.values()) + embeddings.numel() >= 0.98 * sum(p.numel() for p in network.parameters())


def test_fake_cuda_works_in_a_process_with_a_pretend_gpu():
    pretend_gpu()
    with fake_cuda():
        assert torch.tensor(1.5).device == DEVICE


def test_published_models_are_found_by_name_hub_id_and_installed_model():
    assert find_published("meta-llama/Llama-3.1-8B-Instruct") is PUBLISHED["llama-3.1-8b"]
    assert find_published("qwen3-omni") is PUBLISHED["qwen3-omni-30b-a3b"]
    assert find_published("Qwen/Qwen3-30B-A3B") is PUBLISHED["qwen3-30b-a3b"]
    assert find_published("gpt-2") is None


def tensors_in(value):
    """Tensors of an object that is no module, at any depth."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value if isinstance(value, list | tuple) else vars(value).values() if hasattr(value, "__dict__") else ()
    return [] if callable(value) else [tensor for part in parts for tensor in tensors_in(part)]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_networks_of_our_own_are_built_from_published_tensors():
    from mstar.models.pi05.checkpoint import NamedTensors
    from mstar.models.pi05.expert import ActionExpert
    from mstar.nn.audio.code_predictor import CodePredictor

    omni: Any = built("qwen3-omni-30b-a3b")
    predictor, talker = omni["predictor"][0], omni["talker"][0]
    tensors = {f"code_predictor.{name}": tensor for name, tensor in predictor.state_dict().items()}
    tensors["model.codec_embedding.weight"] = talker.codec_embedding.weight
    config = PUBLISHED["qwen3-omni-30b-a3b"].config["talker_config"]["code_predictor_config"]
    with fake_cuda():
        made = tensors_in(CodePredictor({**config, "rope_theta": 1_000_000.0}, tensors))
    assert {tensor.device for tensor in made} == {DEVICE}
    assert sum(tensor.numel() for tensor in made) >= PUBLISHED["qwen3-omni-30b-a3b"].components["predictor"].parameters
    expert: Any = built("pi0.5")["policy"][1]
    with fake_cuda(torch.float32):
        made = tensors_in(ActionExpert(NamedTensors(expert.state_dict()), (4e-3, 4.0)))
    assert {tensor.device for tensor in made} == {DEVICE}
    assert sum(tensor.numel() for tensor in made) >= sum(parameter.numel() for parameter in expert.parameters())
