"""Two turns and a tool call with the Responses LLM of LiveKit's OpenAI plugin, over HTTP.

Runs in its own venv: respond_livekit.py URL MODEL. The model echoes the last message. Prints the text of both turns,
and the name and arguments of the call.
"""

import asyncio
import sys

from livekit.agents import function_tool
from livekit.agents.llm import ChatContext
from livekit.plugins import openai


@function_tool
async def look(at: int) -> str:
    """Look at something."""
    return f"seen {at}"


async def main(url: str, model: str) -> None:
    """Run a conversation."""
    llm = openai.responses.LLM(model=model, base_url=url, api_key="none", use_websocket=False)
    context = ChatContext.empty()
    for text in ("hello", "again"):
        context.add_message(role="user", content=text)
        deltas = [chunk.delta async for chunk in llm.chat(chat_ctx=context) if chunk.delta]
        answer = "".join(delta.content or "" for delta in deltas)
        context.add_message(role="assistant", content=answer)
        sys.stdout.write(f"{answer}\n")
    context.add_message(role="user", content='{"name": "look", "arguments": {"at": 1}}')
    async for chunk in llm.chat(chat_ctx=context, tools=[look], tool_choice="required"):
        for call in chunk.delta.tool_calls if chunk.delta else ():
            sys.stdout.write(f"{call.name} {call.arguments}\n")
    await llm.aclose()


asyncio.run(main(*sys.argv[1:]))
