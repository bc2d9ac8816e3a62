"""A network that is read from a quantized checkpoint has exactly the weights that its tensors stand for."""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mstar.cli.checkpoints.target import resolve_target
from mstar.errors import LoadError
from mstar.models.causal_lm.causal_lm import CausalLanguageModel
from mstar.nn import native
from mstar.nn.weights.sources import Weights
from tests.models.causal_lm import causal_lm_tiny as tiny
from tests.models.causal_lm.test_causal_lm import NEW, QUESTION, chat, run_path
from tests.nn.lm.model_families import new_network
from tests.nn.weights.quantized import layouts

TOKENS = torch.arange(3, 43)[None]
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [24, 16]}


def compressed(layout, **weights):
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16} | weights
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


partial = functools.partial
CHANNEL = {"strategy": "channel", "group_size": None}
CASES = {
    "awq": (AWQ, layouts.awq),
    "awq-one-group": (AWQ | {"group_size": -1}, partial(layouts.awq, group_size=-1)),
    "gptq": (GPTQ, layouts.gptq),
    "gptq-asymmetric": (GPTQ | {"sym": False, "checkpoint_format": "gptq"}, partial(layouts.gptq, is_symmetric=False)),
    "gptq-8": (GPTQ | {"bits": 8}, partial(layouts.gptq, bits=8)),
    "gptq-8-asymmetric": (GPTQ | {"bits": 8, "sym": False}, partial(layouts.gptq, bits=8, is_symmetric=False)),
    "gptq-one-group": (GPTQ | {"group_size": -1}, partial(layouts.gptq, group_size=-1)),
    "gptq-act-order": (GPTQ | {"desc_act": True}, partial(layouts.gptq, has_act_order=True)),
    "gptq-v2": (
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
        partial(layouts.gptq, is_symmetric=False, zero_offset=0),
    ),
    "fp8-blocks": (FP8, layouts.fp8_blocks),
    "fp8-tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, layouts.fp8_tensor),
    "fp8-channels": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, layouts.fp8_channels),
    "w4a16": (compressed("pack-quantized"), layouts.packed),
    "w4a16-asymmetric": (compressed("pack-quantized", symmetric=False), partial(layouts.packed, is_symmetric=False)),
    "w4a16-act-order": (compressed("pack-quantized", actorder="group"), partial(layouts.packed, has_act_order=True)),
    "w8a16": (compressed("pack-quantized", num_bits=8, **CHANNEL), partial(layouts.packed, bits=8, group_size=-1)),
    "w8a8": (compressed("int-quantized", num_bits=8, **CHANNEL), layouts.int8_channels),
    "w8a8-asymmetric": (
        compressed("int-quantized", num_bits=8, symmetric=False, **CHANNEL),
        partial(layouts.int8_channels, is_symmetric=False),
    ),
    "w8a8-fp8": (compressed("float-quantized", num_bits=8, type="float", **CHANNEL), layouts.fp8_channels),
    "w8a8-fp8-blocks": (
        compressed(
            "float-quantized", num_bits=8, type="float", strategy="block", group_size=None, block_structure=[24, 16]
        ),
        layouts.compressed_blocks,
    ),
}


def saved(folder, case="awq", family="llama", **how):
    """A folder with a quantized network, and the weights that its tensors stand for."""
    config, layout = CASES[case]
    tiny.save(folder, family)
    return layouts.save(folder, config, layout, **how)


def plain_network(family, plain, dtype=torch.float32):
    """The network of transformers with these weights."""
    made = new_network(family)
    made.load_state_dict(plain, strict=False)
    return made.to(dtype).eval()


@pytest.mark.parametrize("case", CASES)
def test_a_network_has_the_weights_that_its_tensors_stand_for(tmp_path, case):
    plain = saved(tmp_path, case)
    read = Weights(str(tmp_path)).network()
    actual = read.state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in plain.items())
    expected = plain_network("llama", plain)
    with torch.inference_mode():
        logits = expected(TOKENS).logits
        assert torch.equal(read.eval()(TOKENS).logits, logits)
        changed = (logits - new_network("llama")(TOKENS).logits).abs().max()
    assert changed > 1e-4, "the weights must not be those before quantization"
    assert not hasattr(read.config, "quantization_config")


@pytest.mark.parametrize("case", ["awq", "gptq-act-order", "fp8-blocks", "w4a16"])
def test_an_answer_is_that_of_transformers_with_the_dequantized_weights(tmp_path, case):
    plain = saved(tmp_path / "quantized", case)
    dense = tiny.save(tmp_path / "dense", "llama")
    save_file(plain, dense / "model.safetensors", metadata={"format": "pt"})
    answer = run_path(tmp_path / "quantized", QUESTION)
    assert answer == tiny.library_answer(dense, QUESTION, NEW, do_sample=False)
    assert len(answer) > NEW / 2


@pytest.mark.parametrize("case", ["awq", "gptq", "fp8-blocks"])
def test_experts_are_dequantized_before_they_are_merged(tmp_path, case):
    plain = saved(tmp_path, case, "qwen3_moe")
    assert any("experts.3.up_proj" in name for name in plain)
    (tmp_path / "plain").mkdir()
    fields = json.loads((tmp_path / "config.json").read_text())
    del fields["quantization_config"]
    (tmp_path / "plain" / "config.json").write_text(json.dumps(fields))
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    expected = Weights(str(tmp_path / "plain")).network().state_dict()
    actual = Weights(str(tmp_path)).network().state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_layers_that_are_not_quantized_and_biases_are_read_plainly(tmp_path):
    plain = saved(tmp_path, "awq", "qwen2", skip=("lm_head", "down_proj", "layers.0.self_attn.q_proj"))
    actual = Weights(str(tmp_path)).network().state_dict()
    source = new_network("qwen2").state_dict()
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"):
        assert torch.equal(plain[name], source[name])
    assert "model.layers.0.self_attn.k_proj.bias" in plain
    assert all(torch.equal(actual[name], tensor) for name, tensor in plain.items())


@pytest.mark.parametrize(("dtype", "expected"), [(None, torch.bfloat16), ("float16", torch.float16)])
def test_weights_have_the_dtype_of_the_model_or_another(tmp_path, dtype, expected):
    plain = saved(tmp_path, "gptq", dtype="bfloat16")
    actual = Weights(str(tmp_path)).network(dtype).state_dict()
    assert all(torch.equal(actual[name], tensor.to(expected)) for name, tensor in plain.items())


def test_progress_is_reported_in_bytes_of_the_tensors_that_are_read(tmp_path):
    saved(tmp_path, "fp8-tensor")
    reports = []
    Weights(str(tmp_path)).network(progress=lambda done, total: reports.append((done, total)))
    tensors = [load_file(file) for file in tmp_path.glob("*.safetensors")]
    unread = sum(part[name].nbytes for part in tensors for name in part if name.endswith("input_scale"))
    size = sum(tensor.nbytes for part in tensors for tensor in part.values()) - unread
    assert unread > 0
    assert reports[-1] == (size, size)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_scales_of_a_kv_cache_are_not_read(tmp_path):
    plain = saved(tmp_path, "w8a8-fp8", files=1)
    file = next(tmp_path.glob("*.safetensors"))
    save_file(load_file(file) | {"model.layers.0.self_attn.k_scale": torch.ones(1)}, file)
    actual = Weights(str(tmp_path)).network().state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in plain.items())


@pytest.mark.slow
@pytest.mark.skipif(not native.supports_int8_matmul(), reason="this CPU has no fast int8")
def test_int8_after_it_is_that_of_the_dequantized_weights(tmp_path):
    plain = saved(tmp_path / "quantized", "awq")
    dense = tiny.save(tmp_path / "dense", "llama")
    save_file(plain, dense / "model.safetensors", metadata={"format": "pt"})
    answers = []
    for folder in (tmp_path / "quantized", dense):
        model = CausalLanguageModel(str(folder))
        model.lm.operator_settings = {"quantization": "int8"}
        answers.append([int(emission.value) for emission in model.run(chat(QUESTION)).emissions])
    assert answers[0] == answers[1]


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is 'bitsandbytes', supported: `awq`"),
        ({"quant_method": "mxfp4"}, "quant_method is 'mxfp4', supported: "),
        ({}, "quant_method is None, supported: "),
        (AWQ | {"bits": 3}, "bits is 3, supported: `4`"),
        (AWQ | {"version": "gemv"}, "version is 'gemv', supported: `gemm`"),
        (AWQ | {"version": "marlin"}, "version is 'marlin', supported: `gemm`"),
        (AWQ | {"backend": "llm-awq"}, "backend is 'llm-awq', supported: `autoawq`"),
        (AWQ | {"group_size": 0}, "group_size is 0, supported: `-1`, `a positive number`"),
        (GPTQ | {"bits": 2}, "bits is 2, supported: `4`, `8`"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin', supported: `gptq`, `gptq_v2`"),
        (GPTQ | {"format": "gptq_p"}, "format is 'gptq_p', supported: "),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format is True, supported: `False`"),
        (FP8 | {"fmt": "e5m2"}, "fmt is 'e5m2', supported: `e4m3`"),
        (FP8 | {"weight_block_size": [128]}, r"weight_block_size is \[128\], supported: "),
        (compressed("nvfp4-pack-quantized"), "format is 'nvfp4-pack-quantized', supported: `pack-quantized`"),
        (compressed("marlin-24"), "format is 'marlin-24', supported: "),
        (compressed("pack-quantized", num_bits=2), "weights.num_bits is 2, supported: `4`, `8`"),
        (compressed("float-quantized", num_bits=4, type="float"), "weights.num_bits is 4, supported: `8`"),
        (compressed("pack-quantized", strategy="tensor_group"), "weights.strategy is 'tensor_group', supported: "),
        (compressed("pack-quantized") | {"config_groups": {}}, "config_groups is {}, supported: "),
        (compressed("pack-quantized") | {"transform_config": {"a": 1}}, "transform_config is "),
        (
            compressed("pack-quantized") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config.format is 'sparse-24-bitmask', supported: `dense`",
        ),
        (
            compressed("mixed-precision")
            | {
                "config_groups": {
                    str(bits): {"format": "pack-quantized", "weights": {"num_bits": bits}} for bits in (4, 8)
                }
            },
            "config_groups is .*supported: `the same weights in all groups`",
        ),
    ],
)
def test_another_format_is_refused_before_anything_is_read(tmp_path, config, message):
    tiny.save(tmp_path, "llama")
    (tmp_path / "model.safetensors").unlink()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": config or {"bits": 4}}))
    expected = (
        rf"config.json: quantization_config\.{message}[\s\S]*\n  fix: use a checkpoint of the model in a supported"
    )
    with pytest.raises(LoadError, match=expected):
        Weights(str(tmp_path)).network()
    with pytest.raises(LoadError, match=expected):
        resolve_target(str(tmp_path))


MODULE = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("case", "part", "tensor", "message"),
    [
        ("awq", "qzeros", None, "qzeros is missing"),
        ("awq", "qweight", torch.zeros(2, 3, 4, dtype=torch.int32), r"shape \[2, 3, 4\] is not a matrix"),
        ("awq", "scales", torch.zeros(2, 4), r"scales is \[2, 4\], not \[2, 64\]"),
        ("gptq", "qzeros", torch.zeros(2, 16, dtype=torch.int32), r"qzeros is \[2, 16\], not \[2, 8\]"),
        ("gptq", "g_idx", torch.zeros(5, dtype=torch.int32), r"g_idx is \[5\], not \[32\]"),
        ("gptq-act-order", "g_idx", None, "g_idx is missing"),
        (
            "gptq",
            "scales",
            torch.zeros(2, 64, dtype=torch.int32),
            "scales is int32, not float32 or bfloat16 or float16",
        ),
        ("fp8-blocks", "weight", torch.zeros(64, 32), "weight is float32, not float8_e4m3fn"),
        ("fp8-blocks", "weight_scale_inv", torch.zeros(4, 2), r"weight_scale_inv is \[4, 2\], not \[3, 2\]"),
        ("fp8-channels", "weight_scale", torch.zeros(3), r"weight_scale is \[3\], not \[1, 1\] or \[64, 1\]"),
        ("fp8-channels", "weight_scale", torch.zeros(64, 1, dtype=torch.uint8), "weight_scale is uint8, not float32"),
        ("fp8-channels", "weight", None, "it has weight_scale instead of a weight and one scale"),
        ("w4a16", "weight_scale", None, "weight_scale is missing"),
        ("w4a16-asymmetric", "weight_zero_point", None, "weight_zero_point is missing"),
        ("w8a8", "weight", torch.zeros(64, 32), "weight is float32, not int8"),
        ("w8a8", "weight_g_idx", torch.zeros(32, dtype=torch.int32), "weight_g_idx is supported for packed weights"),
    ],
)
def test_a_layer_with_another_layout_is_named(tmp_path, case, part, tensor, message):
    saved(tmp_path, case, files=1)
    file = next(tmp_path.glob("*.safetensors"))
    tensors = load_file(file)
    tensors.pop(f"{MODULE}.{part}", None)
    save_file(tensors | ({} if tensor is None else {f"{MODULE}.{part}": tensor}), file)
    expected = rf"safetensors: {MODULE} does not have the layout in quantization_config: .*{message}[\s\S]*\n  fix: "
    with pytest.raises(LoadError, match=expected):
        Weights(str(tmp_path)).network()


@pytest.mark.parametrize(
    ("case", "part", "tensor", "message"),
    [
        ("gptq", "g_idx", torch.full((32,), -1, dtype=torch.int32), "an input has a group that is not one of 2"),
        ("gptq", "g_idx", torch.full((32,), 2, dtype=torch.int32), "an input has a group that is not one of 2"),
        ("w4a16", "weight_shape", torch.tensor([64, 40]), r"weight_shape is \[64, 40\], and the codes are \[64, 32\]"),
        ("w4a16-act-order", "weight_g_idx", torch.full((32,), 2, dtype=torch.int32), "a group that is not one of 2"),
    ],
)
def test_a_layer_with_values_that_are_out_of_range_is_named(tmp_path, case, part, tensor, message):
    saved(tmp_path, case, files=1)
    file = next(tmp_path.glob("*.safetensors"))
    save_file(load_file(file) | {f"{MODULE}.{part}": tensor}, file)
    with pytest.raises(
        LoadError, match=rf"{MODULE} does not have the layout in quantization_config: .*{message}\n  fix"
    ):
        Weights(str(tmp_path)).network()


def test_quantized_tensors_that_the_config_does_not_describe_are_refused(tmp_path):
    saved(tmp_path, "fp8-channels", files=1)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": AWQ}))
    with pytest.raises(
        LoadError, match=r"proj.weight is float8_e4m3fn, without the tensors of a quantized weight\n  fix"
    ):
        Weights(str(tmp_path)).network()
    saved(tmp_path / "awq", "awq")
    file = tmp_path / "awq" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": FP8}))
    with pytest.raises(LoadError, match="qweight is unexpected"):
        Weights(str(tmp_path / "awq")).network()


def test_a_config_that_is_not_an_object_is_refused(tmp_path):
    tiny.save(tmp_path, "llama")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": "awq"}))
    with pytest.raises(LoadError, match=r"quantization_config is 'awq', not an object\n  fix: "):
        resolve_target(str(tmp_path))
