"""Text under a grammar fits it, whatever the network says; with real weights too."""

import json
import re
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import mstar.nn.weights.sources as weights
from mstar.errors import LoadError, RowsFailed
from mstar.nn.lm.grammar import GrammarViolation, Vocabulary
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerState
from mstar.requests import BadGrammar, Grammar, Sampling

CYCLE = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
NESTED = '{"items":' * 200 + "{}" + "}" * 200
END = 258
SIZE = 300
"""Of the logits, which are more than the tokens."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def byte_tokenizer():
    """A token for each byte, some for words, and one for the end."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "true", "yes", "<stop>"]
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<stop>", special=True)])
    return made


WORDS = byte_tokenizer()
VOCABULARY = Vocabulary(lambda: WORDS, [END])


def read(text):
    return WORDS.encode(text).ids


def new_sampler(prompt="say: "):
    sampler = SamplerState(VOCABULARY)
    sampler.append_tokens(read(prompt))
    return sampler


def noise(rows, seed=0):
    """Logits for which the end is never the likeliest."""
    logits = torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed))
    logits[:, END] = -20
    return logits


SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "tag": {"enum": ["ä", "b"]},
        "note": {"type": "string", "maxLength": 5},
    },
    "required": ["ok", "size", "tag", "note"],
    "additionalProperties": False,
}


def fits_schema(text):
    made = json.loads(text)
    is_ok = isinstance(made.pop("ok"), bool) and made.pop("size") in range(100)
    return is_ok and made.pop("tag") in {"ä", "b"} and len(made.pop("note")) <= 5 and not made


def is_balanced(text):
    while "()" in text:
        text = text.replace("()", "")
    return not text


CASES = [
    (Grammar.json_schema(SCHEMA), fits_schema),
    (
        Grammar.json_schema('{"type": "array", "items": {"type": "null"}, "maxItems": 2}'),
        ["[]", "[null]", "[null, null]"].__contains__,
    ),
    (Grammar.regex(r"[a-c]{3}-\d{1,4}|/x/"), re.compile(r"[a-c]{3}-\d{1,4}|/x/").fullmatch),
    (Grammar.lark('start: pair pair\npair: "(" pair? ")"'), is_balanced),
    (Grammar.choice(["yes", "no", "maybe"]), ["yes", "no", "maybe"].__contains__),
]


@pytest.mark.parametrize("seed", range(3))
def test_any_network_writes_what_fits_and_then_the_end(seed):
    all_params = [Sampling(temperature=1.0, grammar=grammar, seed=seed) for grammar, _ in CASES]
    samplers = [new_sampler() for _ in CASES]
    texts = [[] for _ in CASES]
    for step in range(200):
        writing = [row for row, text in enumerate(texts) if END not in text]
        if not writing:
            break
        tokens = sample_tokens(
            noise(len(writing), 1000 * seed + step), [all_params[r] for r in writing], [samplers[r] for r in writing]
        )
        for row, token in zip(writing, tokens[:, 0].tolist(), strict=True):
            texts[row].append(token)
            samplers[row].append_tokens([token])
    for (_, fits), text in zip(CASES, texts, strict=True):
        assert text[-1] == END
        assert fits(WORDS.decode(text[:-1]))


def test_rows_without_a_grammar_are_as_if_alone():
    logits = noise(3)
    all_params = [Sampling(), Sampling(grammar=CASES[4][0]), Sampling(temperature=1.5, seed=4)]
    together = sample_tokens(logits, all_params, [new_sampler() for _ in all_params])
    for row, params in enumerate(all_params):
        assert torch.equal(sample_tokens(logits[row : row + 1], [params], [new_sampler()])[0], together[row])
    assert int(together[0]) == int(logits[0].argmax())
    assert int(together[1]) != int(logits[1].argmax())


def next_text(sampler, grammar, wanted="~"):
    """What a network that would write `wanted` is made to write."""
    logits = torch.zeros(1, SIZE)
    logits[0, read(wanted)] = 5
    (token,) = sample_tokens(logits, [Sampling(grammar=grammar)], [sampler])[0].tolist()
    return WORDS.decode([token], skip_special_tokens=False)


def test_it_follows_what_is_read_and_not_what_was_chosen():
    grammar = Grammar.regex("ab|cd")
    sampler = new_sampler()
    assert next_text(sampler, grammar, "a") == "a"
    sampler.append_tokens(read("c"))
    assert next_text(sampler, grammar) == "d"


def test_several_tokens_may_be_read_at_once():
    grammar = Grammar.choice(["abcdef"])
    sampler = new_sampler()
    next_text(sampler, grammar)
    sampler.append_tokens(read("abcde"))
    assert next_text(sampler, grammar) == "f"


def test_forks_stand_in_the_grammar_each_by_itself():
    grammar = Grammar.regex("a(b|c)|bx")
    sampler = new_sampler()
    next_text(sampler, grammar)
    fork = sampler.fork()
    sampler.append_tokens(read("a"))
    fork.append_tokens(read("b"))
    second = sampler.fork()
    assert next_text(fork, grammar) == "x"
    second.append_tokens(read("b"))
    assert next_text(sampler, grammar, "c") == "c"
    assert next_text(second, grammar) == "<stop>"
    assert next_text(sampler, grammar, "c") == "c"


def test_rollback_undoes_what_the_grammar_followed():
    grammar, other = Grammar.regex("ab|cd"), Grammar.regex("z")
    sampler = new_sampler()
    before = sampler.snapshot()
    assert next_text(sampler, grammar, "c") == "c"
    begun = sampler.snapshot()
    sampler.append_tokens(read("ab"))
    assert next_text(sampler, grammar) == "<stop>"
    sampler.append_tokens([END])
    assert next_text(sampler, other) == "z"
    sampler.rollback(begun)
    sampler.append_tokens(read("c"))
    assert next_text(sampler, grammar) == "d"
    sampler.rollback(before)
    assert next_text(sampler, grammar, "c") == "c"


def test_after_its_end_another_text_begins():
    grammar = Grammar.choice(["ab"])
    sampler = new_sampler()
    assert next_text(sampler, grammar) == "a"
    sampler.append_tokens(read("ab"))
    assert next_text(sampler, grammar) == "<stop>"
    assert next_text(sampler, grammar) == "<stop>", "the end was not fed back, so the text still waits for it"
    sampler.append_tokens([END, *read("and now?")])
    assert next_text(sampler, grammar) == "a"


def test_a_token_outside_the_grammar_fails_its_row_and_no_other():
    grammar = Grammar.choice(["ab"])
    params = Sampling(grammar=grammar)
    samplers = [new_sampler() for _ in range(3)]
    sample_tokens(noise(3), [params] * 3, samplers)
    marks = [sampler.snapshot() for sampler in samplers]
    for sampler, text in zip(samplers, ("a", "x", "a"), strict=True):
        sampler.append_tokens(read(text))
    with pytest.raises(
        RowsFailed, match=r"the grammar does not allow the token 87 at this position\n  fix: "
    ) as raised:
        sample_tokens(noise(3), [params] * 3, samplers)
    assert {row: type(error) for row, error in raised.value.errors.items()} == {1: GrammarViolation}
    for sampler, mark in zip(samplers, marks, strict=True):
        sampler.rollback(mark)
        sampler.append_tokens(read("a"))
        assert next_text(sampler, grammar) == "b"
    samplers[0].append_tokens([SIZE - 1])
    with pytest.raises(RowsFailed, match=r"grammar failed: token id 299 out of range\n  fix: "):
        sample_tokens(noise(1), [params], samplers[:1])


marks = st.text("\"'\\/|()[]{}^$.*+?-#%\n\t\x01\x7f aZ0äß€😀", min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(st.lists(marks, min_size=1, max_size=3))
def test_a_choice_may_have_any_characters(texts):
    params = Sampling(grammar=Grammar.choice(texts))
    sampler = SamplerState(VOCABULARY)
    for step in range(40):
        (token,) = sample_tokens(noise(1, step), [params], [sampler])[0].tolist()
        if token == END:
            break
        sampler.append_tokens([token])
    assert WORDS.decode(sampler.history.tolist()) in texts


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar.json_schema({"type": "strin"}), "Invalid type: strin"),
        (Grammar.json_schema({"not": {"type": "string"}}), "Unimplemented keys"),
        (Grammar.regex("(a"), "unclosed group"),
        (Grammar.lark("start: nothing"), "unknown name"),
        (Grammar.json_schema({"$ref": "#/$defs/a", "$defs": CYCLE}), "does not compile: "),
        (Grammar("json_schema", NESTED), "recursion limit"),
        (Grammar.regex("a" * (129 << 10)), "maximum 131072"),
    ],
)
def test_a_grammar_that_cannot_be_used_fails_its_row(grammar, message):
    all_params = [Sampling(), Sampling(grammar=grammar)]
    with pytest.raises(RowsFailed, match=message) as raised:
        sample_tokens(noise(2), all_params, [new_sampler(), new_sampler()])
    assert list(raised.value.errors) == [1]
    assert isinstance(raised.value.errors[1], BadGrammar)
    assert "\n  fix: " in str(raised.value.errors[1])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Grammar.json_schema("{"), "the schema '{' is not JSON"),
        (lambda: Grammar.json_schema("[1]"), r"the schema '\[1\]' is not an object"),
        (lambda: Grammar.choice([]), r"\[\] are no texts to choose from"),
        (lambda: Grammar.choice(["a", ""]), r"\['a', ''\] are no texts to choose from"),
    ],
)
def test_what_is_no_grammar_is_refused_where_it_is_made(made, message):
    with pytest.raises(BadGrammar, match=message + r"[\s\S]*\n  fix: "):
        made()


def test_without_what_it_needs_it_says_so(monkeypatch):
    params, logits = Sampling(grammar=Grammar.regex("a")), noise(1)
    with pytest.raises(RowsFailed, match="the model has no vocabulary for grammars\n  fix: "):
        sample_tokens(logits, [params], [SamplerState()])
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    with pytest.raises(RowsFailed, match=r"cannot map the tokenizer's tokens to bytes[\s\S]*\n  fix: "):
        sample_tokens(logits, [params], [SamplerState(Vocabulary(lambda: words, [1]))])
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        RowsFailed, match=r"structured output needs the package llguidance[\s\S]*\n  fix: pip install"
    ) as raised:
        sample_tokens(logits, [params], [SamplerState(Vocabulary(byte_tokenizer, [END]))])
    assert isinstance(raised.value.errors[0], LoadError)


def test_a_grammar_is_compiled_once(monkeypatch):
    tokenizers = []
    vocabulary = Vocabulary(lambda: tokenizers.append(byte_tokenizer()) or tokenizers[-1], [END])
    samplers = [SamplerState(vocabulary), SamplerState(vocabulary)]
    assert next_text(samplers[0], Grammar.regex("ab")) == "a"
    assert next_text(samplers[0], Grammar.regex("cd")) == "c"
    monkeypatch.setitem(sys.modules, "llguidance", None)  # from here on nothing more can be compiled
    assert next_text(samplers[1], Grammar.regex("ab")) == "a"
    assert len(tokenizers) == 1


STRING = {"type": "string", "maxLength": 20}
QUESTIONS = {
    "Where is the Eiffel Tower?": ({"city": STRING, "country": STRING}, {"city": "Paris", "country": "France"}),
    "Is the sky blue?": (
        {"answer": {"enum": ["yes", "no"]}, "is_sure": {"type": "boolean"}},
        {"answer": "yes", "is_sure": True},
    ),
    "Name three colours.": (
        {"colours": {"type": "array", "items": STRING, "minItems": 3, "maxItems": 3}},
        {"colours": ["red", "blue", "green"]},
    ),
}


class Writer:
    """One question to a real network, and what it has written."""

    def __init__(self, network, vocabulary, given):
        self.network, self.given = network, given
        self.sampler = SamplerState(vocabulary)
        self.cache = None
        self.text = []

    def logits(self):
        self.sampler.append_tokens(self.given)
        made = self.network(torch.tensor([self.given]), past_key_values=self.cache, use_cache=True)
        self.cache = made.past_key_values
        return made.logits[0, -1]

    def take(self, token):
        self.given = [token]
        self.text.append(token)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_real_model_answers_in_json():
    from mstar.nn.weights.gguf import GgufFile

    file = GgufFile(weights.SMOLLM2_135M.path())
    network, words, end = file.network().eval(), file.tokenizer(), 2
    vocabulary = Vocabulary(file.tokenizer, [end])
    chat = "<|im_start|>user\n{} Answer in JSON.<|im_end|>\n<|im_start|>assistant\n"
    writers = {
        Writer(network, vocabulary, words.encode(chat.format(question)).ids): Sampling(
            grammar=Grammar.json_schema(
                {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
            )
        )
        for question, (fields, _) in QUESTIONS.items()
    }
    with torch.inference_mode():
        while writing := [writer for writer in writers if end not in writer.text and len(writer.text) < 40]:
            logits = torch.stack([writer.logits() for writer in writing])
            all_params = [writers[writer] for writer in writing]
            tokens = sample_tokens(logits, all_params, [writer.sampler for writer in writing])
            for writer, token in zip(writing, tokens[:, 0].tolist(), strict=True):
                writer.take(token)
    answers = [json.loads(words.decode(writer.text)) for writer in writers]
    assert answers == [answer for _, answer in QUESTIONS.values()]
