"""Default sampling parameters of a checkpoint: what its generation_config.json means to transformers."""

import json

import pytest
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from mstar.errors import LoadError
from mstar.nn.lm.generation_config import read_default_sampling
from mstar.requests import Sampling


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Sampling()),
        ({"repetition_penalty": 1.2}, Sampling(repetition_penalty=1.2)),
        ({"do_sample": True}, Sampling(temperature=1.0, top_k=50)),
        (
            {
                "do_sample": True,
                "temperature": 0.7,
                "top_k": 20,
                "top_p": 0.8,
                "min_p": 0.1,
                "repetition_penalty": 1.05,
            },
            Sampling(temperature=0.7, top_k=20, top_p=0.8, min_p=0.1, repetition_penalty=1.05),
        ),
        ({"do_sample": True, "top_k": None, "top_p": 0.95}, Sampling(temperature=1.0, top_k=50, top_p=0.95)),
    ],
)
def test_fields_mean_what_they_mean_to_generate(tmp_path, fields, expected):
    network = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, bos_token_id=0, eos_token_id=1))
    network.generation_config = GenerationConfig(**fields)
    network.save_pretrained(tmp_path)
    assert read_default_sampling(tmp_path) == expected
    resolved, _ = network._prepare_generation_config(None)
    assert bool(resolved.do_sample) == bool(expected.temperature)
    assert resolved.repetition_penalty == expected.repetition_penalty
    if resolved.do_sample:
        assert (resolved.temperature, resolved.top_k, resolved.top_p) == (
            expected.temperature,
            expected.top_k,
            expected.top_p,
        )


def test_a_folder_without_the_file_has_no_defaults(tmp_path):
    assert read_default_sampling(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a generation config"),
        ("[]", "is not a generation config"),
        (json.dumps({"do_sample": True, "temperature": "hot"}), "is not a generation config"),
        (json.dumps({"do_sample": True, "top_p": 2}), "top_p must be above 0 and at most 1"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(LoadError, match=message) as error:
        read_default_sampling(tmp_path)
    assert "generation_config.json" in str(error.value)
    assert "fix:" in str(error.value)
