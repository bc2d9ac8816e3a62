"""Writes the weights of a network in each quantized layout, number by number as the formats describe it.

Nothing here uses the reader under test. Each layout returns its tensors and the weight that they stand for;
`test_known_words.py` compares both sides with words that were computed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Outputs of a word from its lowest bits, as in the packing of AutoAWQ."""


def to_words(rows: Any, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """int32 words of unsigned codes: those of each row, 32 / bits to a word, the first one in the lowest bits."""
    count = 32 // bits
    codes = np.asarray(rows).astype(np.uint32)
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % count))).reshape(len(codes), -1, count)
    words = np.zeros(codes.shape[:2], np.uint32)
    for position, index in enumerate(order or range(count)):
        words |= codes[:, :, index] << np.uint32(bits * position)
    return torch.from_numpy(words.view(np.int32))


def quantize(
    weight: Tensor, bits: int, group: Any, *, is_symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """Codes [outputs, inputs], zero points and scales [outputs, groups] and the weight; `group` is that of each input.

    Scales are float16, so that codes and scales give the weight exactly in float32.
    """
    source = weight.float().numpy()
    group = np.asarray(group)
    groups = int(group.max()) + 1
    scales = np.zeros((len(source), groups), np.float16)
    zeros = np.full((len(source), groups), 1 << (bits - 1), np.int64)
    for number in range(groups):
        part = source[:, group == number]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if is_symmetric:
            scales[:, number] = np.maximum(-low, high) / ((1 << (bits - 1)) - 1)
        else:
            scales[:, number] = (high - low) / ((1 << bits) - 1)
            zeros[:, number] = np.round(-low / scales[:, number].astype(np.float32))
    spread, offset = scales.astype(np.float32)[:, group], zeros[:, group]
    codes = np.clip(np.round(source / spread) + offset, 0, (1 << bits) - 1).astype(np.int64)
    return codes, zeros, scales, torch.from_numpy((codes - offset).astype(np.float32) * spread)


def in_order(inputs: int, group_size: int) -> np.ndarray:
    return np.arange(inputs) // (inputs if group_size == -1 else group_size)


def awq(weight: Tensor, group_size: int = 16) -> tuple[Tensors, Tensor]:
    codes, zeros, scales, plain = quantize(weight, 4, in_order(weight.shape[1], group_size), is_symmetric=False)
    tensors = {
        "qweight": to_words(codes.T, 4, AWQ_OUTPUTS),
        "qzeros": to_words(zeros.T, 4, AWQ_OUTPUTS),
        "scales": torch.from_numpy(scales.T.copy()),
    }
    return tensors, plain


def gptq(
    weight: Tensor,
    bits: int = 4,
    group_size: int = 16,
    *,
    is_symmetric: bool = True,
    has_act_order: bool = False,
    zero_offset: int = 1,
) -> tuple[Tensors, Tensor]:
    group = in_order(weight.shape[1], group_size)
    if has_act_order:
        group = np.random.default_rng(0).permutation(group)
    codes, zeros, scales, plain = quantize(weight, bits, group, is_symmetric=is_symmetric)
    words = to_words(zeros.T, bits)
    if zero_offset:  # whole words, as GPTQModel writes it
        ones = sum(1 << shift for shift in range(0, 32, bits))
        words = torch.from_numpy((words.numpy().view(np.uint32) - np.uint32(ones)).view(np.int32))
    tensors = {
        "qweight": to_words(codes, bits).T.contiguous(),
        "qzeros": words,
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": torch.from_numpy(group.astype(np.int32)),
    }
    return tensors, plain


def fp8_blocks(weight: Tensor, block: tuple[int, int] = (24, 16)) -> tuple[Tensors, Tensor]:
    """Blocks that do not divide all shapes, so that the last ones are smaller."""
    rows, columns = (-(-size // each) for size, each in zip(weight.shape, block, strict=True))
    codes, plain = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(weight.shape)
    scales = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            at = np.s_[row * block[0] : (row + 1) * block[0], column * block[1] : (column + 1) * block[1]]
            scales[row, column] = weight[at].abs().max() / 448
            codes[at] = (weight[at] / scales[row, column]).to(codes.dtype)
            plain[at] = codes[at].float() * scales[row, column]
    return {"weight": codes, "weight_scale_inv": scales}, plain


def compressed_blocks(weight: Tensor) -> tuple[Tensors, Tensor]:
    tensors, plain = fp8_blocks(weight)
    return {"weight": tensors["weight"], "weight_scale": tensors["weight_scale_inv"]}, plain


def fp8_channels(weight: Tensor) -> tuple[Tensors, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def fp8_tensor(weight: Tensor) -> tuple[Tensors, Tensor]:
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(2.0)}, codes.float() * scale


def packed(
    weight: Tensor, bits: int = 4, group_size: int = 16, *, is_symmetric: bool = True, has_act_order: bool = False
) -> tuple[Tensors, Tensor]:
    """pack-quantized of compressed-tensors. Its signed codes are stored with half of their range added."""
    group = in_order(weight.shape[1], group_size)
    if has_act_order:
        group = np.random.default_rng(0).permutation(group)
    codes, zeros, scales, plain = quantize(weight, bits, group, is_symmetric=is_symmetric)
    tensors = {
        "weight_packed": to_words(codes, bits),
        "weight_scale": torch.from_numpy(scales),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not is_symmetric:
        tensors["weight_zero_point"] = to_words(zeros.T, bits).T.contiguous()
    if has_act_order:
        tensors["weight_g_idx"] = torch.from_numpy(group.astype(np.int32))
    return tensors, plain


def int8_channels(weight: Tensor, *, is_symmetric: bool = True) -> tuple[Tensors, Tensor]:
    """int-quantized of compressed-tensors: W8A8."""
    codes, zeros, scales, plain = quantize(weight, 8, in_order(weight.shape[1], -1), is_symmetric=is_symmetric)
    tensors = {"weight": torch.from_numpy(codes - 128).to(torch.int8), "weight_scale": torch.from_numpy(scales)}
    if not is_symmetric:
        tensors["weight_zero_point"] = torch.from_numpy(zeros - 128).to(torch.int8)
    return tensors, plain


def save(
    folder: Path,
    config: dict[str, Any],
    layout: Callable[[Tensor], tuple[Tensors, Tensor]],
    *,
    files: int = 2,
    skip: tuple[str, ...] = ("lm_head",),
    dtype: str = "float32",
) -> Tensors:
    """Quantize the checkpoint in a folder, in place. Returns the weights that its tensors stand for.

    Linear layers are quantized, except those with one of these names. Tensors of a layer are in different files.
    """
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    written: Tensors = {}
    plain: Tensors = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight" and "proj" in module and not any(word in module for word in skip):
            parts, plain[name] = layout(tensor)
            written |= {f"{module}.{each}": value.contiguous() for each, value in parts.items()}
        else:
            written[name] = plain[name] = tensor
    names = sorted(written, key=lambda name: name[::-1])
    index: dict[str, str] = {}
    for number in range(files):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        chosen = names[number::files]
        save_file({name: written[name] for name in chosen}, folder / file)
        index |= dict.fromkeys(chosen, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | {"quantization_config": config, "dtype": dtype}
    path.write_text(json.dumps(fields))
    return plain
