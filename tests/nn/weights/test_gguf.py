"""What is written to a GGUF file by the format's own rules is read back as the same model and the same tokens."""

import gguf
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mstar.errors import LoadError
from mstar.nn.weights.gguf import GgufFile
from mstar.nn.weights.sources import Weights

WORDS = ["<end>", "a", "b", "c", "Ġ", "1", "2", "ab", "Ġab", "abc"]
MERGES = ["a b", "Ġ ab", "ab c"]
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def network(*, is_tied):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": len(WORDS)}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=is_tied)).eval()


def permuted(weight, heads):
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write(path, model, architecture="llama", words="gpt2", digits="smollm", chat_template=None, **surplus):
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    if chat_template:
        writer.add_chat_template(chat_template)
        writer.add_eos_token_id(0)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model(words)
    writer.add_tokenizer_pre(digits)
    writer.add_token_list(WORDS)
    writer.add_token_types([3] + [1] * (len(WORDS) - 1))
    writer.add_token_merges(MERGES)
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name.startswith("model.layers."):
            _, _, layer, part = name.removesuffix(".weight").split(".", 3)
            weight = permuted(tensor, heads[part]) if part in heads else tensor
            writer.add_tensor(f"blk.{layer}.{NAMES[part]}.weight", weight.numpy())
        elif name != "lm_head.weight" or not config.tie_word_embeddings:
            whole = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}
            writer.add_tensor(f"{whole.get(name, 'output')}.weight", tensor.numpy())
    for name, tensor in surplus.items():
        writer.add_tensor(f"{name}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_is_read_as_it_was_written(tmp_path, is_tied):
    model = network(is_tied=is_tied)
    write(tmp_path / "m.gguf", model)
    read = GgufFile(tmp_path / "m.gguf").network()
    assert read.config.tie_word_embeddings is is_tied
    for name, tensor in model.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor), name
    tokens = torch.tensor([[1, 5, 3, 8, 2]])
    assert torch.equal(read.eval()(tokens).logits, model(tokens).logits)


def test_text_becomes_tokens_and_text_again(tmp_path):
    write(tmp_path / "m.gguf", network(is_tied=True))
    tokenizer = GgufFile(tmp_path / "m.gguf").tokenizer()
    tokens = tokenizer.encode("abc ab12<end>").ids
    assert [WORDS[token] for token in tokens] == ["abc", "Ġab", "1", "2", "<end>"]
    assert tokenizer.decode(tokens) == "abc ab12"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            {"architecture": "gpt2"},
            "general.architecture is gpt2, not supported\n  fix: use a file with general.architecture llama",
        ),
        ({"words": "llama"}, "tokenizer.ggml.model is llama, not supported\n  fix: "),
        ({"digits": "llama-bpe"}, "tokenizer.ggml.pre is llama-bpe, not supported\n  fix: "),
    ],
)
def test_what_would_be_guessed_is_refused(tmp_path, kind, message):
    write(tmp_path / "m.gguf", network(is_tied=True), **kind)
    with pytest.raises(LoadError, match=message):
        GgufFile(tmp_path / "m.gguf")


def test_a_tensor_that_a_plain_llama_lacks_is_refused(tmp_path):
    write(tmp_path / "m.gguf", network(is_tied=True), rope_freqs=torch.ones(2))
    with pytest.raises(LoadError, match=r"rope_freqs\.weight is unexpected"):
        GgufFile(tmp_path / "m.gguf").network()


def test_a_file_that_lacks_what_the_model_needs_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(LoadError, match=r"has no tokenizer\.ggml\.model\n  fix: "):
        GgufFile(tmp_path / "m.gguf")


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"version https://git-lfs")
    with pytest.raises(LoadError, match=r"is not a complete GGUF file: .*\n  fix: "):
        GgufFile(tmp_path / "m.gguf")


def test_weights_are_a_file_or_the_folder_of_one(tmp_path):
    model = network(is_tied=False)
    write(tmp_path / "m.gguf", model)
    reports = []
    for weights in (Weights(str(tmp_path / "m.gguf")), Weights(str(tmp_path))):
        read = weights.network("bfloat16", progress=lambda done, total: reports.append((done, total)))
        assert torch.equal(read.lm_head.weight, model.lm_head.weight.bfloat16())
        assert [WORDS[token] for token in weights.tokenizer().encode("abc").ids] == ["abc"]
    size = sum(weight.nbytes for weight in model.parameters())
    assert reports[len(reports) // 2 - 1] == reports[-1] == (size, size)
