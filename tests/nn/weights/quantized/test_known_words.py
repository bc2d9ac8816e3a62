"""Words that were computed by hand from each format's description, so that packer and reader cannot err alike.

The other library of these formats that runs without a GPU, compressed-tensors, is the second reference.
"""

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize as library_dequantize
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from mstar.nn.weights.quantized.methods import find_format
from tests.nn.weights.quantized import layouts
from tests.nn.weights.quantized.test_quantized_checkpoints import AWQ, CASES, GPTQ, compressed

FLOAT = torch.float32


def words(*values):
    """int32 words of these unsigned numbers, in one row."""
    return torch.from_numpy(np.array([values], np.uint32).view(np.int32))


def dequantize(config, tensors, dtype=FLOAT):
    form = find_format(config, "config.json")
    return form.dequantize({name: tensor for name, tensor in tensors.items() if name in form.parts}, dtype)


def weight(outputs=24, inputs=32):
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))


def test_awq_has_outputs_0_2_4_6_1_3_5_7_from_the_lowest_bits():
    tensors = {"qweight": words(0x75316420), "qzeros": words(0xFDB9ECA8), "scales": torch.full((1, 8), 0.5)}
    zeros = [8, 9, 10, 11, 12, 13, 14, 15]
    expected = [[(code - zero) * 0.5] for code, zero in zip(range(8), zeros, strict=True)]
    assert dequantize(AWQ, tensors).tolist() == expected
    assert layouts.to_words([range(8)], 4, layouts.AWQ_OUTPUTS).tolist() == [[0x75316420]]


def test_gptq_has_inputs_in_order_and_zero_points_minus_one():
    tensors = {
        "qweight": words(0x76543210).T,
        "qzeros": words(0x7),
        "scales": torch.full((1, 1), 0.5),
        "g_idx": torch.zeros(8, dtype=torch.int32),
    }
    expected = [[(code - 8) * 0.5 for code in range(8)]]
    assert dequantize(GPTQ, tensors).tolist() == expected
    assert dequantize(GPTQ | {"checkpoint_format": "gptq_v2"}, tensors | {"qzeros": words(0x8)}).tolist() == expected
    assert layouts.to_words([range(8)], 4).tolist() == [[0x76543210]]


def test_published_symmetric_gptq_has_these_zero_points():
    """0x77777777 and 0x7f7f7f7f are in every symmetric checkpoint with 4 and 8 bits: 8 and 128, minus one."""
    for bits, ones in ((4, 0x77777777), (8, 0x7F7F7F7F)):
        tensors, _ = layouts.gptq(weight(), bits)
        assert {*tensors["qzeros"].flatten().tolist()} == {ones}


def test_8_bits_have_4_codes_in_a_word():
    tensors = {"qweight": words(0xFF800100).T, "qzeros": words(0x7F), "scales": torch.ones(1, 1)}
    assert dequantize(GPTQ | {"bits": 8}, tensors).tolist() == [[-128, -127, 0, 127]]


def test_a_zero_point_of_0_borrows_from_the_next_one_in_gptq():
    """GPTQModel subtracts 0x11111111 from the word with zero points 0, 1, 2, 0, 0, 0, 0, 0: 0x210 becomes this."""
    tensors = {"qweight": torch.zeros(1, 8, dtype=torch.int32), "qzeros": words(0xEEEEF0FF), "scales": torch.ones(1, 8)}
    assert (0x210 - 0x11111111) % (1 << 32) == 0xEEEEF0FF
    assert (-dequantize(GPTQ, tensors)[:, 0]).tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_compressed_tensors_adds_half_of_the_range():
    tensors = {
        "weight_packed": words(0x76543210),
        "weight_shape": torch.tensor([1, 7]),
        "weight_scale": torch.full((1, 1), 0.5),
    }
    symmetric = compressed("pack-quantized", strategy="channel", group_size=None)
    assert dequantize(symmetric, tensors).tolist() == [[(code - 8) * 0.5 for code in range(7)]]
    asymmetric = compressed("pack-quantized", strategy="channel", group_size=None, symmetric=False)
    assert dequantize(asymmetric, tensors | {"weight_zero_point": words(0x3)}).tolist() == [
        [(code - 3) * 0.5 for code in range(7)]
    ]


def test_fp8_has_4_bits_of_exponent_and_3_of_mantissa():
    codes = torch.tensor([[0x38, 0xB8, 0x7E, 0x01, 0x39, 0x00]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    values = dequantize({"quant_method": "fp8"}, {"weight": codes, "weight_scale": torch.tensor(2.0)})
    assert values.tolist() == [[2.0, -2.0, 896.0, 2.0**-8, 2.25, 0.0]]


def test_every_code_of_fp8_is_that_of_torch():
    codes = torch.arange(256, dtype=torch.uint8)[None].view(torch.float8_e4m3fn)
    values = dequantize({"quant_method": "fp8"}, {"weight": codes, "weight_scale": torch.ones(1)})
    assert torch.equal(values.nan_to_num(7), codes.float().nan_to_num(7))


def test_a_scale_with_an_exponent_only_is_a_power_of_two():
    """The scales of `scale_fmt` "ue8m0"."""
    scale = torch.tensor([[126]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    values = dequantize(
        {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
        {"weight": torch.ones(2, 2).to(torch.float8_e4m3fn), "weight_scale_inv": scale},
    )
    assert values.tolist() == [[0.5, 0.5], [0.5, 0.5]]


# ---------------------------------------------------------------- other libraries
@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("w") and "order" not in name])
def test_weights_are_those_of_compressed_tensors(case):
    config, layout = CASES[case]
    # Blocks that divide the weight: the library wants no others.
    tensors, _ = layout(weight(48, 32))
    arguments = QuantizationArgs(**config["config_groups"]["group_0"]["weights"])
    zeros = tensors.get("weight_zero_point")
    if "weight_packed" in tensors:
        from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
        from compressed_tensors.quantization import QuantizationScheme

        scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
        expected = PackedQuantizationCompressor.decompress(tensors, scheme)["weight"]
    else:
        expected = library_dequantize(tensors["weight"], tensors["weight_scale"], zeros, arguments)
    assert torch.equal(dequantize(config, tensors, expected.dtype), expected)


def test_words_are_those_of_compressed_tensors():
    for bits in (4, 8):
        codes = torch.randint(0, 1 << bits, (16, 24), generator=torch.Generator().manual_seed(0))
        half = 1 << (bits - 1)
        assert torch.equal(layouts.to_words(codes, bits), pack_to_int32((codes - half).to(torch.int8), bits))


def test_awq_is_what_compressed_tensors_converts_it_to():
    tensors, plain = layouts.awq(weight())
    converted = AutoAWQConverter(group_size=16).process({f"a.{name}": tensor for name, tensor in tensors.items()})
    parts = {name.removeprefix("a."): tensor for name, tensor in converted.items()}
    assert torch.equal(dequantize(compressed("pack-quantized", symmetric=False), parts), plain)


def test_fp8_blocks_are_those_of_transformers():
    tensors, _ = layouts.fp8_blocks(weight(48, 32))
    expected = Fp8Dequantize(None)._dequantize_one(tensors["weight"], tensors["weight_scale_inv"], torch.bfloat16)
    assert torch.equal(dequantize(CASES["fp8-blocks"][0], tensors, torch.bfloat16), expected)
