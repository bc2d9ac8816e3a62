"""The tools of an MCP server that mstar calls, with Anthropic's SDK: mcp_anthropic.py URL MODEL SCRIPT."""

import json
import sys

from anthropic import Anthropic

TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "records"}


def main(url, model, script):
    """Print the types of the blocks, the results and the text of a message, and the same of a streamed one."""
    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    options = {"model": model, "max_tokens": 400, "messages": [{"role": "user", "content": script}]}
    with client.beta.messages.stream(**options, tools=[TOOLSET]) as stream:
        streamed = stream.get_final_message()
    for message in (client.beta.messages.create(**options, tools=[TOOLSET]), streamed):
        results = [block.content[0].text for block in message.content if block.type == "mcp_tool_result"]
        inputs = [block.input for block in message.content if block.type == "mcp_tool_use"]
        kinds = [block.type for block in message.content]
        sys.stdout.write(f"{json.dumps([kinds, inputs, results, message.content[-1].text, message.stop_reason])}\n")


main(*sys.argv[1:])
