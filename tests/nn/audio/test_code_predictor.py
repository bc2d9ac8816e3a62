"""The code predictor: its kernels give what torch gives, and no frame depends on the others of its batch."""

import pytest
import torch

from mstar.nn import native
from mstar.nn.audio.code_predictor import CodePredictor

SHAPES = [
    {"width": 32, "heads": 4, "kv_heads": 2, "size": 16, "hidden": 48, "groups": 8},
    {"width": 40, "heads": 2, "kv_heads": 2, "size": 12, "hidden": 33, "groups": 4, "outer": 24},
    {"width": 32, "heads": 4, "kv_heads": 2, "size": 16, "hidden": 48, "groups": 8, "normed": False},
]
CODES, LAYERS, ROWS = 50, 2, 5
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.2}


def tensors(shape, dtype):
    """Random ones, by the names that they have in a file."""
    torch.manual_seed(0)
    width, size, hidden = shape["width"], shape["size"], shape["hidden"]
    outer = shape.get("outer", width)
    both = {"q_proj": (shape["heads"] * size, width), "o_proj": (width, shape["heads"] * size)}
    both |= dict.fromkeys(("k_proj", "v_proj"), (shape["kv_heads"] * size, width))
    sizes = {f"self_attn.{name}": one for name, one in both.items()}
    sizes |= {"mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width), "mlp.down_proj": (width, hidden)}
    sizes |= {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
    if shape.get("normed", True):
        sizes |= {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,)}
    every = {f"model.layers.{layer}.{name}": one for layer in range(LAYERS) for name, one in sizes.items()}
    for group in range(shape["groups"] - 1):
        every |= {f"model.codec_embedding.{group}": (CODES, outer), f"lm_head.{group}": (CODES, width)}
    every["model.norm"] = (width,)
    made = {f"code_predictor.{name}.weight": torch.randn(one) / one[-1] ** 0.5 for name, one in every.items()}
    if outer != width:
        made["code_predictor.small_to_mtp_projection.weight"] = torch.randn(width, outer) / outer**0.5
        made["code_predictor.small_to_mtp_projection.bias"] = torch.randn(width)
    made["model.codec_embedding.weight"] = torch.randn(CODES, outer)
    return {name: one.to(dtype) for name, one in made.items()}


def network(shape, dtype):
    config = {"num_code_groups": shape["groups"], "num_attention_heads": shape["heads"]}
    config |= {"num_key_value_heads": shape["kv_heads"], "head_dim": shape["size"], "rms_norm_eps": 1e-6}
    is_normed = shape.get("normed", True)
    return CodePredictor(config | {"num_hidden_layers": LAYERS}, tensors(shape, dtype), has_head_norms=is_normed)


def predict_frames(codes, first, thought, forced=None):
    """All codes, what they sum up to, and the logits of each step; the codes may be forced."""
    scores, left = [], None if forced is None else iter(forced[:, 1:].split(1, 1))

    def choose(logits):
        scores.append(logits.float())
        return logits.argmax(-1, keepdim=True) if left is None else next(left)

    return *codes.predict_frames(first, thought, choose), torch.stack(scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_give_what_torch_gives(shape, dtype, monkeypatch):
    first, thought = torch.randint(0, CODES, (ROWS, 1)), torch.randn(ROWS, shape.get("outer", shape["width"])).to(dtype)
    chosen, embedding_sum, scores = predict_frames(network(shape, dtype), first, thought)
    monkeypatch.setattr(native, "is_native", lambda *_: False)
    _, wanted, others = predict_frames(network(shape, dtype), first, thought, chosen)
    assert (scores - others).abs().max() < CLOSE[dtype]
    assert (embedding_sum - wanted).abs().max() < CLOSE[dtype]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_frame_does_not_depend_on_its_batch(shape):
    made, first = network(shape, torch.float32), torch.randint(0, CODES, (ROWS, 1))
    thought = torch.randn(ROWS, shape.get("outer", shape["width"]))
    thought[1], first[1] = thought[0], first[0]
    together = predict_frames(made, first, thought)
    assert torch.equal(together[2][:, 0], together[2][:, 1])
    if made._narrow is None:  # which torch multiplies
        for row in range(ROWS):
            alone = predict_frames(made, first[row : row + 1], thought[row : row + 1])
            assert torch.equal(alone[2][:, 0], together[2][:, row])
