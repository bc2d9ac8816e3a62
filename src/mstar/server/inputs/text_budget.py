"""Text budget: rejects text that cannot fit in the context of a model, and tokenizes long text before it is submitted.

Steps for a request whose model has the hooks `max_text_bytes` and `tokenize`:

1. Bytes. A token stands for a limited number of bytes, so text above `max_text_bytes()` exceeds the context whatever
   its tokens are. It is rejected without tokenization.
2. Text above MAX_INLINE_TEXT_BYTES is tokenized in a thread of the front end, tenant by tenant. The engine of a worker
   then gets tokens, and its other requests do not wait.
3. Shorter text is tokenized by the model's own op.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from mstar.errors import MstarError, NeverFits
from mstar.media.fair_slots import FairSlots
from mstar.requests import ChatRequest
from mstar.server.errors import ApiError, request_error_code
from mstar.walk.model import Model

MAX_INLINE_TEXT_BYTES = 16 << 10
"""Maximum bytes of text that the op of a model tokenizes: about 10 ms."""
TOKENIZER_THREADS = 2


class TextBudget:
    """Checks and tokenizes the text of chat requests."""

    def __init__(self) -> None:
        self._slots = FairSlots(TOKENIZER_THREADS)
        self._running: set[asyncio.Task[Any]] = set()
        """Hooks that run in a thread, those of cancelled requests included."""

    def check(self, model: Model, request: Any) -> None:
        """Raise ApiError if the text of a request is too long for the model, by its bytes alone."""
        if isinstance(request, ChatRequest):
            self.check_size(model, text_bytes(request))

    def check_size(self, model: Model, size: int, param: str = "messages") -> None:
        """Raise ApiError if text of this number of bytes, or more, is too long for the model."""
        max_text_bytes = _hook(model, "max_text_bytes")
        limit = None if max_text_bytes is None else max_text_bytes()
        if limit is not None and size > limit:
            message = (
                f"{param}: the text has {size} bytes or more; the context of this model holds at most {limit}. "
                "fix: send less text"
            )
            raise ApiError(400, "context_length_exceeded", message, param=param)

    def is_long(self, model: Model, request: Any) -> bool:
        """Whether a request must be tokenized before it is submitted."""
        return (
            isinstance(request, ChatRequest)
            and _hook(model, "tokenize") is not None
            and text_bytes(request) > MAX_INLINE_TEXT_BYTES
        )

    async def tokenize(self, model: Model, request: Any, tenant: str) -> Any:
        """Tokenize a long request in a thread. Raises ApiError."""
        return await self._run_hook(model, "tokenize", request, tenant, "messages")

    async def tokenize_prompt(self, model: Model, prompt: str | Sequence[int], tenant: str) -> Any:
        """Token ids of a prompt without a chat template, given as text or as token ids. Raises ApiError."""
        if isinstance(prompt, str):
            self.check_size(model, len(prompt.encode(errors="replace")), "prompt")
        return await self._run_hook(model, "tokenize_prompt", prompt, tenant, "prompt")

    async def _run_hook(self, model: Model, name: str, argument: Any, tenant: str, param: str) -> Any:
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._slots.slot(tenant))
                running = asyncio.create_task(_run_in_thread(stack.pop_all(), _hook(model, name), argument))
            self._running.add(running)
            running.add_done_callback(self._on_done)
            await asyncio.wait([running])  # leaves the task alone if this is cancelled
            return running.result()
        except MstarError as error:
            if (code := request_error_code(type(error).__name__)) is None:
                raise
            raise ApiError(400, code, str(error), param=param if isinstance(error, NeverFits) else None) from None

    def _on_done(self, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        _ = running.cancelled() or running.exception()  # of a cancelled request, whose exception has no reader


async def _run_in_thread(slot: AsyncExitStack, hook: Callable[[Any], Any], argument: Any) -> Any:
    """Run a hook in a thread, and hold its slot until the thread ends: a thread cannot be cancelled."""
    async with slot:
        return await asyncio.to_thread(hook, argument)


def text_bytes(request: ChatRequest) -> int:
    """Bytes of text in the messages of a request, as UTF-8."""
    size = 0
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, str):
                size += len(part if part.isascii() else part.encode(errors="replace"))
    return size


def _hook(model: Model, name: str) -> Any:
    """An optional hook of a model, or None."""
    return getattr(model, name) if hasattr(type(model), name) else None
