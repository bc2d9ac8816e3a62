"""Equal layers are captured once, and the result is the graph of a complete capture."""

import contextlib

import pytest
import torch
import transformers as t

from mstar.nn.compile import flat_graph, graph_capture, repeated_layers
from mstar.nn.kv.paged_attention import PAGED_ATTENTION
from tests.nn.lm.model_families import SMALL

LAYERS = 6


def network(**config):
    torch.manual_seed(0)
    made = t.Qwen2ForCausalLM(t.Qwen2Config(**(SMALL | {"num_hidden_layers": LAYERS} | config)))
    made.config._attn_implementation = PAGED_ATTENTION
    return made.eval().requires_grad_(requires_grad=False)


def captured(made):
    flat, _ = graph_capture.capture(made)
    return [row[1] for row in flat_graph.encode(flat.graph) if row[0] == "call_function"], flat


@pytest.fixture
def recorded(monkeypatch):
    """Names of the layers that are captured, one entry for each."""
    names = []
    call = repeated_layers._Recorder.__call__

    def counted(self, *args, **kwargs):
        before = sum(map(len, self._captured.values()))
        result = call(self, *args, **kwargs)
        if sum(map(len, self._captured.values())) > before:
            names.append(self.index)
        return result

    monkeypatch.setattr(repeated_layers._Recorder, "__call__", counted)
    return names


@pytest.mark.parametrize("windows", [{}, {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 3}])
def test_the_graph_is_that_of_a_complete_capture(windows, recorded, monkeypatch):
    short, flat = captured(network(**windows))
    assert recorded == ([0, 1, 3, 4] if windows else [0, 1])
    monkeypatch.setattr(graph_capture, "recording_equal_layers_once", lambda _: contextlib.nullcontext())
    complete, whole = captured(network(**windows))
    assert short == complete
    assert sorted(map(repr, flat.constants)) == sorted(map(repr, whole.constants))


def test_layers_with_different_attributes_are_captured_separately(recorded):
    made = network()
    made.model.layers[4].self_attn.scaling = 0.5
    _, flat = captured(made)
    assert recorded == [0, 1, 4]
    scales = [node.args[4] for node in flat.graph.nodes if getattr(node.target, "__name__", "") == "attend_fused_qkv"]
    assert [scale == 0.5 for scale in scales] == [number == 4 for number in range(LAYERS)]


def test_layers_whose_code_depends_on_their_number_are_captured_completely():
    made = network()

    class Scaled(type(made.model.layers[0].mlp)):
        def forward(self, x):
            return super().forward(x) * (1.0 + self.layer_idx)

    for layer in made.model.layers:
        layer.mlp.__class__, layer.mlp.layer_idx = Scaled, layer.self_attn.layer_idx
    _, flat = captured(made)
    factors = [node.args[1] for node in flat.graph.nodes if str(node.target) == "aten.mul.Tensor"]
    assert [factor for factor in factors if isinstance(factor, float) and factor > 1] == [2.0, 3.0, 4.0, 5.0, 6.0]
