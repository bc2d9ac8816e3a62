"""The model of the engine comparison as a GGUF file, which llama.cpp reads: the same weights, without a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BF16, Q8_0 = "BF16", "Q8_0"
"""Formats of matrices: the same numbers, and 8 bits with a scale for each 32 of them."""


def write_gguf(network: Any, path: Path, matrix_format: str = BF16) -> None:
    """Write a transformers Llama. Vectors are float32, as in all files that llama.cpp's own converter writes."""
    import gguf
    from gguf.quants import quantize

    config, kind = network.config, gguf.GGMLQuantizationType[matrix_format]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    rotated = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in network.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = tensor.float()
        heads = next((count for part, count in rotated.items() if part in name), 0)
        if heads:  # llama.cpp rotates neighbors, transformers the two halves of a head
            rows, columns = weight.shape
            weight = weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
        array, target = weight.contiguous().numpy(), names.get_name(name, try_suffixes=(".weight",))
        if array.ndim == 1:
            writer.add_tensor(target, array)
        else:
            writer.add_tensor(target, quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
