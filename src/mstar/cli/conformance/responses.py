"""Conformance checks of responses and completions: events, tools, structured output, stored responses, prompts."""

from __future__ import annotations

import json
from typing import Any

from mstar.cli.conformance.chat import CITIES
from mstar.cli.conformance.target import Check, ConformanceTarget, require

RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/completions"
QUESTION = "What is the capital of France?"


def _respond(target: ConformanceTarget, **params: Any) -> Any:
    options = {"input": QUESTION, "temperature": 0, "max_output_tokens": 24, **params}
    return target.openai.responses.create(model=target.model, **options)


def _plain(target: ConformanceTarget) -> str:
    response = _respond(target)
    require(response.status in ("completed", "incomplete"), f"the status is {response.status}")
    require(response.output_text, "the response has no text")
    return response.output_text


def _streamed(target: ConformanceTarget) -> str:
    whole = _respond(target).output_text
    events = list(_respond(target, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    require(text == whole, f"the stream has {text!r}, the plain response {whole!r}")
    require(events[0].type == "response.created", f"the first event is {events[0].type}")
    require(events[-1].type in ("response.completed", "response.incomplete"), f"the last event is {events[-1].type}")
    require([event.sequence_number for event in events] == [*range(len(events))], "the events are not numbered")
    return f"{len(events)} events"


def _tools(target: ConformanceTarget) -> str:
    tool = {"type": "function", "name": "weather", "parameters": CITIES, "strict": True}
    (call,) = _respond(target, tools=[tool], tool_choice="required", max_output_tokens=64).output
    require(call.type == "function_call" and call.name == "weather", f"the output is a {call.type}")
    require(json.loads(call.arguments)["city"] in ("Paris", "Rome"), f"the arguments are {call.arguments}")
    return call.arguments


def _schema(target: ConformanceTarget) -> str:
    text_format = {"type": "json_schema", "name": "place", "schema": CITIES, "strict": True}
    text = _respond(target, text={"format": text_format}, max_output_tokens=64).output_text
    require(json.loads(text)["city"] in ("Paris", "Rome"), f"the text is {text!r}")
    return text


def _stored(target: ConformanceTarget) -> str:
    first = _respond(target)
    second = _respond(target, input="Why?", previous_response_id=first.id)
    items = list(target.openai.responses.input_items.list(second.id, order="asc"))
    require(len(items) == 3, f"the second response has {len(items)} input items, expected 3")
    require(target.openai.responses.retrieve(first.id).output_text == first.output_text, "another text is stored")
    target.openai.responses.delete(first.id)
    status = target.http.get(f"{RESPONSES}/{first.id}").status_code
    require(status == 404, f"a deleted response has the status {status}")
    return ""


def _complete(target: ConformanceTarget, prompt: Any, **params: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 8, **params}
    return target.openai.completions.create(model=target.model, prompt=prompt, **options)


def _completion(target: ConformanceTarget) -> str:
    whole = _complete(target, "The capital of France is").choices[0]
    streamed = _complete(target, "The capital of France is", stream=True)
    text = "".join(chunk.choices[0].text for chunk in streamed)
    require(text == whole.text, f"the stream has {text!r}, the plain completion {whole.text!r}")
    require(whole.finish_reason in ("stop", "length"), f"finish_reason is {whole.finish_reason}")
    return whole.text


def _prompts(target: ConformanceTarget) -> str:
    choices = _complete(target, ["One, two,", "A, B,"], echo=True).choices
    require([choice.index for choice in choices] == [0, 1], f"{len(choices)} choices, expected 2")
    require(choices[1].text.startswith("A, B,"), f"the text is {choices[1].text!r}")
    return ""


CHECKS = (
    Check(RESPONSES, "plain", _plain),
    Check(RESPONSES, "stream", _streamed),
    Check(RESPONSES, "tools", _tools),
    Check(RESPONSES, "json_schema", _schema),
    Check(RESPONSES, "stored", _stored),
    Check(COMPLETIONS, "plain and stream", _completion),
    Check(COMPLETIONS, "prompts and echo", _prompts),
)
