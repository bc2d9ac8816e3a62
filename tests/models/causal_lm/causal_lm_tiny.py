"""Tiny causal language models with random weights, saved as `save_pretrained` does, and the answers of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as t
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.nn.lm.counter_based_generate import counter_based_draws
from tests.nn.lm.model_families import SMALL, new_network

LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:?!{}\"'", "Ġ", "Ċ"]
SPECIAL = ["<pad>", "<s>", "<|im_end|>", "<|im_start|>"]
TOOL_TOKENS = ["<tool_call>", "</tool_call>"]
WORDS = [*SPECIAL, *LETTERS, *TOOL_TOKENS]
MERGES = [("Ġ", letter) for letter in "abcdefghijklmnopqrstuvwxyz"][: SMALL["vocab_size"] - len(WORDS)]
IDS = {word: number for number, word in enumerate([*WORDS, *map("".join, MERGES)])}

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools: {% for tool in tools %}{{ tool.function.name }}{% endfor %}, answer with <tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LIBRARY_FAMILIES = {
    "bloom": lambda: t.BloomForCausalLM(
        t.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4, eos_token_id=2)
    ),
    "mamba": lambda: t.MambaForCausalLM(
        t.MambaConfig(vocab_size=97, hidden_size=32, state_size=4, num_hidden_layers=2, eos_token_id=2)
    ),
}
"""Families without paged attention: ALiBi, and a state space model."""


def make_tokenizer(*, has_template: bool = True) -> t.PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer for the vocabulary of the tiny networks."""
    vocabulary = {word: number for word, number in IDS.items() if word not in {*SPECIAL, *TOOL_TOKENS}}
    made = Tokenizer(models.BPE(vocab=IDS | vocabulary, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    made.add_tokens([AddedToken(name, special=False, normalized=False) for name in TOOL_TOKENS])
    template = {"chat_template": CHAT_TEMPLATE} if has_template else {}
    return t.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="<|im_end|>", pad_token="<pad>", **template
    )


def save(folder: Path, family: str, *, has_template: bool = True, **generation: Any) -> Path:
    """Save a model of a family with its tokenizer and generation config."""
    if family in LIBRARY_FAMILIES:
        torch.manual_seed(0)
        network = LIBRARY_FAMILIES[family]().eval()
        for weight in network.parameters():
            if weight.ndim == 2:
                weight.data.mul_(4)
    else:
        network = new_network(family)
    network.generation_config = t.GenerationConfig(eos_token_id=2, pad_token_id=0, **generation)
    network.save_pretrained(folder)
    make_tokenizer(has_template=has_template).save_pretrained(folder)
    return folder


def library_answer(folder: Path, text: str, max_tokens: int, **params: Any) -> str:
    """The answer of transformers to one user message, from the same folder."""
    network = t.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = t.AutoTokenizer.from_pretrained(folder)
    if tokenizer.chat_template:
        message = [{"role": "user", "content": text}]
        inputs = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt")
    else:
        inputs = tokenizer(text, return_tensors="pt")
    with counter_based_draws(params.pop("seed", 0)):
        written = network.generate(input_ids=inputs["input_ids"], max_new_tokens=max_tokens, **params)
    return tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
