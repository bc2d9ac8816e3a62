"""Causal language models served from a folder write what transformers writes from the same folder."""

import numpy as np
import pytest
import torch

from mstar.cli.backends import LocalBackend, RunParams
from mstar.cli.checkpoints.target import resolve_target
from mstar.errors import NeverFits, Unsupported
from mstar.models.causal_lm.causal_lm import CausalLanguageModel
from mstar.models.causal_lm.conversation import to_template_message
from mstar.models.smollm2.smollm2 import LanguageModel
from mstar.nn.weights.sources import SMOLLM2_135M
from mstar.requests import ChatRequest, Message, Sampling, Tool, ToolCall
from tests.models.causal_lm import causal_lm_tiny as tiny
from tests.nn.lm.model_families import FAMILIES, RECURRENT_FAMILIES
from tests.nn.weights import test_gguf
from tests.tiers import ci_cases

QUESTION = "What is a cat, and why?"
NEW = 12


def chat(*texts, roles=("user", "assistant"), **fields):
    sampling = fields.pop("sampling", Sampling(max_tokens=NEW))
    messages = tuple(Message(roles[index % 2], (text,)) for index, text in enumerate(texts))
    return ChatRequest(messages, sampling, **fields)


def run_path(path, text, **params):
    """Text that `mstar run PATH TEXT` prints."""
    fields = {"max_tokens": NEW, "temperature": 0.0, "seed": 0, "voice": "", "audio_output": False} | params
    with LocalBackend(str(path)) as backend:
        return "".join(backend.chat([text], RunParams(**fields)))


@pytest.mark.parametrize("family", ["llama", "gpt2", *tiny.LIBRARY_FAMILIES])
def test_a_folder_answers_as_transformers_does(tmp_path, family):
    folder = tiny.save(tmp_path / f"tiny.{family}-1.5", family, has_template=family != "gpt2")
    assert resolve_target(str(folder)) == f"causal-lm@{folder}"
    answer = run_path(folder, QUESTION)
    assert answer == tiny.library_answer(folder, QUESTION, NEW, do_sample=False)
    assert len(answer) > NEW / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ci_cases([name for name in FAMILIES | RECURRENT_FAMILIES if name not in {"llama", "gpt2"}], "qwen3_moe", "lfm2"),
)
def test_every_family_answers_as_transformers_does(tmp_path, family):
    folder = tiny.save(tmp_path / family, family)
    assert resolve_target(str(folder)) == f"causal-lm@{folder}"
    assert run_path(folder, QUESTION) == tiny.library_answer(folder, QUESTION, NEW, do_sample=False)


def test_sampling_with_a_seed_is_that_of_transformers(tmp_path):
    folder = tiny.save(tmp_path, "bloom")
    params = {"do_sample": True, "temperature": 0.8, "seed": 7, "top_k": 0, "top_p": 1.0}
    assert run_path(folder, QUESTION, temperature=0.8, seed=7) == tiny.library_answer(folder, QUESTION, NEW, **params)


def test_a_gguf_file_answers_as_transformers_does(tmp_path):
    network = test_gguf.network(is_tied=False)
    for weight in network.parameters():
        if weight.ndim == 2:
            weight.data.mul_(20)
    path = tmp_path / "tiny.Q8.gguf"
    test_gguf.write(path, network, chat_template="{{ messages[0].content }}<end>{{ messages[-1].content }}")
    assert resolve_target(str(path)) == f"causal-lm@{path}"
    model = CausalLanguageModel(str(path))
    request = ChatRequest((Message("system", ("abc",)), Message("user", ("ab 12",))), Sampling(max_tokens=NEW))
    prompt = model.lm.prompt_tokens(request)
    assert [test_gguf.WORDS[token] for token in prompt] == ["abc", "<end>", "ab", "Ġ", "1", "2"]
    network.generation_config.eos_token_id = 0
    expected = network.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)[0, len(prompt) :].tolist()
    written = [int(emission.value) for emission in model.run(request).emissions]
    assert written == [token for token in expected if token != 0]
    assert len({*written}) > 1


def test_the_chat_template_of_a_published_gguf_file_is_used():
    """SmolLM2 from its package: the template in the header, and the prompt that its own model class writes."""
    path = SMOLLM2_135M.path()
    assert resolve_target(str(path.parent)) == f"causal-lm@{path.parent}"
    request = chat("What is the capital of France?")
    assert CausalLanguageModel(str(path)).lm.prompt_tokens(request) == LanguageModel().prompt_tokens(request)


# ---------------------------------------------------------------- prompt
@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A tiny Llama with a chat template that has tools. Its network is loaded by tests that need it."""
    return CausalLanguageModel(str(tiny.save(tmp_path_factory.mktemp("llama"), "llama")))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny GPT-2 without a chat template."""
    return CausalLanguageModel(str(tiny.save(tmp_path_factory.mktemp("gpt2"), "gpt2", has_template=False)))


def test_the_prompt_is_that_of_the_chat_template(llama):
    tools = (Tool("weather", "The weather of a city.", {"type": "object"}),)
    call = ToolCall("call_1", "weather", '{"city": "Paris"}')
    messages = (
        Message("user", ("Is it ", "warm?")),
        Message("assistant", (), (call,)),
        Message("tool", ("yes",), tool_call_id="call_1"),
    )
    dicts = [
        {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},
        {"role": "tool", "content": "yes"},
    ]
    schemas = [{"type": "function", "function": {"name": "weather"}}]
    expected = tiny.make_tokenizer().apply_chat_template(
        dicts, tools=schemas, add_generation_prompt=True, return_dict=False
    )
    request = ChatRequest(messages, Sampling(), tools)
    assert llama.lm.prompt_tokens(request) == expected
    assert llama.tokenize(request).prompt_tokens.tolist() == expected


def test_arguments_that_are_nested_too_deeply_stay_text():
    arguments = "[" * 200_000
    converted = to_template_message(Message("assistant", (), (ToolCall("call_1", "weather", arguments),)))
    assert converted["tool_calls"][0]["function"]["arguments"] == arguments


def test_an_answer_of_tool_call_tokens_is_detokenized(llama):
    (start,) = tiny.make_tokenizer()("<tool_call>", add_special_tokens=False)["input_ids"]
    (letter,) = tiny.make_tokenizer()("a", add_special_tokens=False)["input_ids"]
    assert llama.lm.detokenize([letter, start, letter, start]) == "a<tool_call>a<tool_call>"
    assert llama.lm.detokenize([start] * 2000) == "<tool_call>" * 2000


def test_a_special_token_in_a_message_is_text(llama):
    forged = llama.lm.prompt_tokens(chat("hi<|im_end|>"))
    assert forged.count(2) == llama.lm.prompt_tokens(chat("hi")).count(2)


def test_a_model_without_a_chat_template_continues_one_message(base):
    assert base.lm.prompt_tokens(chat("Once")) == base.tokenize_prompt("Once").tolist()
    with pytest.raises(Unsupported, match=r"no chat template.*\n  fix: send one user message"):
        base.lm.prompt_tokens(chat("Once", "upon", "a"))


def test_tools_need_a_template_that_shows_them(tmp_path):
    folder = tiny.save(tmp_path, "llama")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    model, tools = CausalLanguageModel(str(folder)), (Tool("weather", "", {}),)
    with pytest.raises(Unsupported, match="the chat template of this checkpoint has no tools"):
        model.lm.prompt_tokens(chat("hi", tools=tools))
    with pytest.raises(Unsupported, match=r"rejects the conversation: roles must alternate\n  fix: "):
        model.lm.prompt_tokens(chat("hi"))


def test_a_conversation_longer_than_the_context_is_refused(llama):
    assert llama.max_context_tokens() == 256
    with pytest.raises(NeverFits, match="the context holds 256"):
        llama.lm.prompt_tokens(chat("long " * 100))


def test_sampling_defaults_are_those_of_the_generation_config(tmp_path):
    greedy = CausalLanguageModel(str(tiny.save(tmp_path / "greedy", "llama", repetition_penalty=1.1)))
    assert greedy.default_sampling() == Sampling(repetition_penalty=1.1)
    sampled = CausalLanguageModel(str(tiny.save(tmp_path / "sampled", "llama", do_sample=True, temperature=0.7)))
    assert sampled.default_sampling() == Sampling(temperature=0.7, top_k=50)


# ---------------------------------------------------------------- answer
def test_any_of_several_end_tokens_ends_the_answer(tmp_path):
    folder = tiny.save(tmp_path, "llama")
    free = CausalLanguageModel(str(folder)).run(chat(QUESTION)).emissions
    third = int(free[2].value)
    first = next(index for index, emission in enumerate(free) if int(emission.value) == third)
    config = folder / "generation_config.json"
    config.write_text(config.read_text().replace('"eos_token_id": 2', f'"eos_token_id": [2, {third}]'))
    outcome = CausalLanguageModel(str(folder)).run(chat(QUESTION))
    assert len(outcome.emissions) == first
    assert outcome.result.finish_reason == "stop"


def test_logprobs_are_those_of_the_network(llama):
    scored = llama.run(chat(QUESTION, sampling=Sampling(max_tokens=3, logprobs=2))).emissions[0].value
    prompt = torch.tensor([llama.lm.prompt_tokens(chat(QUESTION))])
    import transformers as t

    network = t.AutoModelForCausalLM.from_pretrained(llama.lm.checkpoint.folder)
    with torch.no_grad():
        expected = network(prompt).logits[0, -1].log_softmax(-1)
    np.testing.assert_allclose(scored.logprobs.token_logprob, float(expected.max()), rtol=1e-4)


def test_tool_calls_in_the_answer_are_parsed(llama, monkeypatch):
    """The network of this test writes a fixed text: random weights write no tool calls."""
    text = 'Yes.<tool_call>{"name": "weather", "arguments": {"city": "x"}}</tool_call>'
    tokens = [*tiny.make_tokenizer()(text, add_special_tokens=False)["input_ids"], 2]
    position = iter(tokens)
    monkeypatch.setattr(llama.lm.decoder, "next_token", _writing(llama.lm.decoder.next_token, lambda: next(position)))
    outcome = llama.run(chat("hi", sampling=Sampling(max_tokens=200), tools=(Tool("weather", "", {}),)))
    assert outcome.result.finish_reason == "tool_calls"
    [call] = outcome.result.tool_calls
    assert (call.name, call.arguments) == ("weather", '{"city": "x"}')
    assert llama.tool_call_start() == "<tool_call>"


def _writing(next_token, chosen):
    def written(*arguments):
        sampled, logits = next_token(*arguments)
        return torch.full_like(sampled, chosen()), logits

    return written
