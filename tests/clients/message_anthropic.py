"""Messages with Anthropic's SDK: text, a stream, a stop sequence, a forced tool and its result, an error.

Runs in its own venv: message_anthropic.py URL MODEL KEY. Prints one JSON value per step.
"""

import json
import sys

from anthropic import Anthropic, BadRequestError

TOOL = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
QUESTION = {"role": "user", "content": "What is the capital of France?"}


def show(value):
    """Print a value."""
    sys.stdout.write(f"{json.dumps(value)}\n")


def main(url, model, key):
    """Talk to the server."""
    client = Anthropic(base_url=url, api_key=key, max_retries=0)
    options = {"model": model, "max_tokens": 40, "messages": [QUESTION], "extra_body": {"temperature": 0}}
    message = client.messages.create(**options)
    show([message.content[0].text, message.stop_reason, message.usage.input_tokens, message.usage.output_tokens])
    with client.messages.stream(**options) as stream:
        texts = [*stream.text_stream]
        final = stream.get_final_message()
    show(["".join(texts) == final.content[0].text, len(texts) > 1, final.usage.input_tokens, final.usage.output_tokens])
    stopped = client.messages.create(**options, stop_sequences=["is Paris", "never"])
    show([stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence])
    ask = {"role": "user", "content": "What is the weather in Paris?"}
    called = client.messages.create(
        **options | {"messages": [ask]}, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}
    )
    (use,) = called.content
    show([use.type, use.name, sorted(use.input), called.stop_reason])
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "20 degrees"}]}
    turns = [ask, {"role": "assistant", "content": called.content}, result]
    show(client.messages.create(**options | {"messages": turns}, tools=[TOOL]).stop_reason)
    try:
        client.messages.create(**options, thinking={"type": "enabled", "budget_tokens": 1024})
    except BadRequestError as error:
        show([error.status_code, error.type])


main(*sys.argv[1:])
