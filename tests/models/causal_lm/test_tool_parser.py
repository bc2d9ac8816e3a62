"""Tool parsers: the format is that of the chat template, and malformed calls stay text."""

import pytest

from mstar.models.causal_lm.tool_parser import find_tool_parser

HERMES, MISTRAL, LLAMA = (
    find_tool_parser(template) for template in ("... <tool_call> ...", "[TOOL_CALLS]", "<|python_tag|>")
)


def calls(parser, text):
    return [(call.name, call.arguments) for call in parser.parse(text)]


def test_every_format_is_parsed():
    hermes = '<tool_call>\n{"name": "a", "arguments": {"x": "é"}}\n</tool_call>\n<tool_call>{"name": "b"}</tool_call>'
    assert calls(HERMES, f"Let me see. {hermes}") == [("a", '{"x": "é"}'), ("b", "{}")]
    assert calls(MISTRAL, '[TOOL_CALLS] [{"name": "a", "arguments": {}}, {"name": "b", "arguments": "{}"}]') == [
        ("a", "{}"),
        ("b", "{}"),
    ]
    assert calls(LLAMA, ' {"name": "a", "parameters": {"n": 1}}') == [("a", '{"n": 1}')]


def test_equal_text_gives_equal_calls():
    """A worker that replays a request must compute what the lost one computed."""
    text = '<tool_call>{"name": "a"}</tool_call>'
    assert HERMES.parse(text) == HERMES.parse(text)


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (HERMES, 'no call: {"name": "a"}'),
        (HERMES, '<tool_call>{"name": "a", "argum'),
        (HERMES, '<tool_call>{"name": 1}</tool_call>'),
        (MISTRAL, '[{"name": "a"}]'),
        (LLAMA, 'It is {"name": "a", "parameters": {}}'),
        (LLAMA, '{"city": "Paris"}'),
    ],
)
def test_other_text_is_no_call(parser, text):
    assert calls(parser, text) == []


def test_a_template_without_a_known_format_has_no_parser():
    assert find_tool_parser("{{ messages }}") is None


def test_arguments_that_are_nested_too_deeply_are_no_call():
    assert calls(HERMES, '<tool_call>{"name": "a", "arguments": ' + '{"x": ' * 200_000) == []
